"""docs/algorithms.md says what is so."""

import re
from pathlib import Path

from stages.algorithms.kinds import GIVEN
from stages.algorithms.load import SHIPPED, load_algorithm
from stages.algorithms.operator import OPERATORS

TEXT = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()


def test_the_example_is_an_algorithm(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "example.yaml").write_text(example)
    algorithm = load_algorithm(str(tmp_path / "example.yaml"))
    assert not algorithm.needs_values and len(algorithm.update) == 9


def test_the_tables_have_every_operator_given_quantity_and_shipped_file() -> None:
    table = TEXT.split("## Operators")[1].split("\\* compares")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    listed = {name: row for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert listed.keys() == OPERATORS.keys()
    for name, row in listed.items():
        op = OPERATORS[name]
        assert set(re.findall(r"`(\w+)`", row[2])) == op.inputs.keys(), name
        assert set(re.findall(r"`(\w+)`", row[3])) == op.values.keys(), name
        assert ("*" in row[1]) == op.whole_batch, name
    assert all(f"| `{name}` | {kind}" in TEXT for name, kind in GIVEN.items())
    assert all(f"[{path.stem}](../stages/algorithms/{path.name})" in TEXT for path in SHIPPED.glob("*.yaml"))
