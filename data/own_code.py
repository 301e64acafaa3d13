"""Python files of the user's own, named in a config or beside it: executed as they are, wherever they lie."""

import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType


def load_file(path: Path) -> ModuleType:
    """Execute the file and give it as a module; it can import what is installed, but not the files beside it.

    ValueError names the file, and the line where it fails.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    # Not by the import system: it would leave byte code beside the file, and find an old one there.
    module = ModuleType(f"own_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look up annotations
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise ValueError(f"{path}{_line(error, path)}: {type(error).__name__}: {error}") from error
    return module


def _line(error: BaseException, path: Path) -> str:
    """`:12`, the last line of the file that was under way."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    lines, trace = list[int](), error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f":{lines[-1]}" if lines else ""
