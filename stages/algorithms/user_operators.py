"""Operators of the user's own, from the Python files that an algorithm file names."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from data.own_code import load_file
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
        try:
            with registered_in(registry):
                load_file(file)
        except ValueError as error:
            rules = f"; {RULES}" if isinstance(error.__cause__, TypeError | NameError) else ""
            raise ValueError(f"{algorithm}: operators: {error}{rules}") from error
        if len(registry) == before:
            raise ValueError(f"{algorithm}: operators: {file} has no operator; {RULES}")
    return registry
