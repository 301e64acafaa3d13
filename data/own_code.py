"""Python files of the user's own, named in a config or beside it: executed as they are, wherever they lie."""

import sys
import traceback
from hashlib import sha256
from pathlib import Path
from types import ModuleType


def load_file(path: Path) -> ModuleType:
    """Execute the file and give it as a module; it can import what is installed, but not the files beside it.

    ValueError names the file, and the line where it fails.
    """
    return load_source(path, read_source(path))


def read_source(path: Path) -> bytes:
    """What the file says now. ValueError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def load_source(path: Path, source: bytes) -> ModuleType:
    """Like `load_file`, for what the file has said."""
    # Not by the import system: it would leave byte code beside the file, and find an old one there.
    module = ModuleType(f"own_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look up annotations
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # sys.exit(0) in the file would end the command as if all were well
        raise ValueError(_problem(error, path)) from error
    return module


def _problem(error: BaseException, path: Path) -> str:
    """What failed, and in which line of the file."""
    if isinstance(error, SyntaxError):
        return f"{path}:{error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    text = f"{path}:{lines[-1]}: " if lines else f"{path}: "
    text += f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError):
        text += f"; import it inside the function: the file is also read where there is no {error.name}"
    return text
