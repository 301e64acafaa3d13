"""The table of the shipped operators, docs/operators.md: `python -m stages.algorithms.catalog` writes it."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from stages.algorithms.load import OPERATOR_MODULES
from stages.algorithms.operator import OPERATORS, Operator

DOCUMENT = Path(__file__).parents[2] / "docs" / "operators.md"
HEAD = """# Operators

What an [algorithm](algorithms.md) can be made of; operators of your own come to it
([how](algorithms.md#an-operator-of-your-own)). This page is generated: `python -m stages.algorithms.catalog`.

Quantities are per token, per sample, per group, or a scalar. A value with `=` has a default. An operator with a \\*
compares samples of the whole batch or asks all ranks, so it belongs in `experience`.
"""


def catalog() -> str:
    """The page: a table for each module of operators, in the order of the modules."""
    parts = [HEAD]
    for module in OPERATOR_MODULES:
        title = (inspect.getdoc(module) or "").split("\n")[0].rstrip(".")
        rows = [_row(op) for op in OPERATORS.values() if op.function.__module__ == module.__name__]
        head = "| operator | takes | values | gives | |\n|---|---|---|---|---|"
        parts.append("\n".join([f"## {title}", "", head, *rows]) + "\n")
    return "\n".join(parts)


def _row(op: Operator) -> str:
    takes = ", ".join(f"`{name}` {kind}" for name, kind in op.inputs.items())
    gives = ", ".join(f"`{name}` {kind}" if name else str(kind) for name, kind in op.outputs.items())
    text = " ".join((inspect.getdoc(op.function) or "").split("\n\n")[0].split()).replace("|", "\\|")
    name = f"`{op.name}` \\*" if op.whole_batch else f"`{op.name}`"
    cells = [name, takes, ", ".join(_values(op)), gives, text]
    return f"| {' | '.join(cells)} |"


def _values(op: Operator) -> Iterator[str]:
    for name, parameter in op.values.items():
        yield f"`{name}`" if parameter.default is parameter.empty else f"`{name} = {parameter.default}`"


if __name__ == "__main__":
    DOCUMENT.write_text(catalog())
    print(f"wrote {DOCUMENT}", file=sys.stderr)
