"""docs/algorithms.md and docs/operators.md say what is so."""

import re
from pathlib import Path
from typing import Any

import yaml

from stages.algorithms.catalog import DOCUMENT, catalog
from stages.algorithms.kinds import GIVEN
from stages.algorithms.load import SHIPPED, load_algorithm
from stages.algorithms.operator import OPERATORS
from stages.algorithms.spec import AlgorithmSpec, NodeSpec

TEXT = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
EXAMPLES: list[dict[str, Any]] = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]


def load(folder: Path, content: dict[str, Any]) -> Any:
    (folder / "example.yaml").write_text(yaml.safe_dump(content))
    return load_algorithm(str(folder / "example.yaml"))


def test_the_example_is_an_algorithm(tmp_path: Path) -> None:
    algorithm = load(tmp_path, EXAMPLES[0])
    assert not algorithm.needs_values and len(algorithm.update) == 9


def test_the_example_of_an_operator_works_in_the_example(tmp_path: Path) -> None:
    (source,) = [text for text in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "@operator" in text]
    (own,) = [example for example in EXAMPLES if "operators" in example]
    (tmp_path / own["operators"][0]).write_text(source)
    whole = {**EXAMPLES[0], **own, "update": {**EXAMPLES[0]["update"], **own["update"]}}
    whole["update"]["surrogate_mean"]["takes"] = {"of": "clipped"}
    del whole["update"]["surrogate"], whole["metrics"]["clip_share"]
    assert "soft_clip" in {node.operator.name for node in load(tmp_path, whole).update}


def test_the_table_of_the_operators_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == catalog(), "python -m stages.algorithms.catalog writes it"
    assert all(f"| `{name}`" in catalog() for name in OPERATORS)


def test_every_key_given_quantity_and_shipped_file_is_in_the_tables() -> None:
    keys = TEXT.split("| key | meaning |")[1].split("\n\n")[0]
    assert [key for key in AlgorithmSpec.model_fields if f"`{key}`" not in keys] == []
    assert [key for key in NodeSpec.model_fields if f"`{key}`" not in TEXT] == []
    assert all(f"| `{name}` | {kind}" in TEXT for name, kind in GIVEN.items())
    assert all(f"[{path.stem}](../stages/algorithms/{path.name})" in TEXT for path in SHIPPED.glob("*.yaml"))
