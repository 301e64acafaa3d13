"""Operators of the user's own, from the Python files that an algorithm file names."""

import sys
import traceback
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from stages.algorithms.operator import Operator, registered_in

RULES = (
    "an operator is a function under `@operator()`, its inputs annotated PerToken, PerSample, PerGroup or Scalar, its "
    "values after a `*` (docs/algorithms.md)"
)


def with_operators(shipped: Mapping[str, Operator], algorithm: Path, files: Sequence[Path]) -> dict[str, Operator]:
    """The shipped operators and those of the files, which belong to this algorithm alone.

    Raises ValueError that names `algorithm`, the file, and the line where it is known.
    """
    registry = dict(shipped)
    for file in files:
        before = len(registry)
        with registered_in(registry):
            _execute(algorithm, file)
        if len(registry) == before:
            raise ValueError(f"{algorithm}: operators: {file} has no operator; {RULES}")
    return registry


def _execute(algorithm: Path, file: Path) -> None:
    """Run the file as a module of its own. Nothing is cached or written: what runs is what the file says now."""
    name = f"operators_{sha256(str(file).encode()).hexdigest()[:12]}"
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module  # where annotations in quotes are looked up
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    except Exception as error:
        raise ValueError(f"{algorithm}: operators: {_problem(error, file)}") from error


def _problem(error: Exception, file: Path) -> str:
    if isinstance(error, SyntaxError):
        return f"{file}:{error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    where = f"{file}:{lines[-1]}" if lines else str(file)
    text = f"{where}: {type(error).__name__}: {error}"
    if isinstance(error, ImportError):
        return f"{text}; import it inside the operator: the file is also read where there is no {error.name}"
    return f"{text}; {RULES}" if isinstance(error, TypeError | NameError) else text
