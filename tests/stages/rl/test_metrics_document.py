"""docs/metrics.md names every metric and every warning."""

import re
from pathlib import Path

import pytest

from stages.algorithms.load import SHIPPED, load_algorithm
from stages.rl.summary import OWN_METRICS, PREFIX
from stages.rl.warnings import RULES

TEXT = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
ROWS = [line for line in TEXT.splitlines() if line.startswith("| `")]
NAMED = {name for row in ROWS for name in re.findall(r"`([\w/<>]+)`", row.split("|")[1])}


def test_every_metric_of_the_stage_has_a_row() -> None:
    assert sorted(OWN_METRICS - NAMED) == []
    assert {f"{PREFIX}<term>_mean", f"{PREFIX}<term>_failed"} <= NAMED


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.yaml")))
def test_every_metric_of_a_shipped_algorithm_has_a_row(name: str) -> None:
    algorithm = load_algorithm(name)
    assert sorted((algorithm.experience_metrics.keys() | algorithm.update_metrics.keys()) - NAMED) == []


def test_no_row_is_of_a_metric_that_there_is_not() -> None:
    shipped = [load_algorithm(path.stem) for path in SHIPPED.glob("*.yaml")]
    known = OWN_METRICS.union(*(a.experience_metrics.keys() | a.update_metrics.keys() for a in shipped))
    assert sorted(name for name in NAMED - known if PREFIX not in name and name != "_std") == []


def test_every_warning_is_there_with_what_to_try() -> None:
    for rule, advice in RULES:
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| {rule.__name__.replace('_', ' ')} |"))
        assert row.endswith(f"| {advice} |")
