import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.evaluate.summary import COLUMNS, summary
from stages.evaluate.words import duration, evidence, percent, points, verdict, with_interval


def compared(low: float, difference: float, high: float) -> dict[str, Any]:
    pair = {"suite": "greedy", "before": "sft", "after": "rl", "won": 0.3, "lost": 0.1, "tied": 0.6, "count": 200}
    policies = {"sft": {"greedy": {"success": 0.4}}, "rl": {"greedy": {"success": 0.4 + difference}}}
    return {"comparisons": [pair | {"low": low, "difference": difference, "high": high}], "policies": policies}


@pytest.mark.parametrize(
    ("low", "difference", "high", "said"),
    [
        (0.1, 0.2, 0.3, "Reinforcement learning raised success from 40.0% to 60.0%."),
        (-0.3, -0.2, -0.1, "Reinforcement learning lowered success from 40.0% to 20.0%."),
        (-0.1, 0.01, 0.2, "Reinforcement learning made no measurable difference: 40.0% before, 41.0% after."),
    ],
)
def test_the_headline_claims_only_what_the_interval_bears(
    low: float, difference: float, high: float, said: str
) -> None:
    assert verdict(compared(low, difference, high), "sft", "rl") == said


def test_the_evidence_counts_prompts() -> None:
    assert evidence(compared(0.1, 0.2, 0.3), "sft", "rl") == (
        "+20.0 points (+10.0 to +30.0) on the same 200 prompts: 60 won, 20 lost, 120 as before."
    )


def test_numbers_in_words() -> None:
    assert percent(0.4123) == "41.2%" and percent(None) == "–"
    assert with_interval({"success": 0.5, "low": 0.4, "high": 0.6}) == "50.0% (40.0 to 60.0)"
    assert with_interval(None) == with_interval({"success": None, "low": None, "high": None}) == "–"
    assert points(-0.031) == "−3.1" and points(0.2) == "+20.0"
    assert [duration(s) for s in (None, 0.2, 31.4, 94, 3700)] == ["–", "under 1 s", "31 s", "1 min 34 s", "1 h 1 min"]


def test_the_summary_has_a_row_for_each_stage_with_what_it_reached_and_cost(evaluated: Path) -> None:
    report = json.loads((evaluated / "report.json").read_text())
    rows = {row.stage: row for row in summary(report)}
    assert list(rows) == ["synth", "base", "sft", "rl", "evaluate"]
    assert tuple(vars(rows["rl"])) == COLUMNS
    assert rows["rl"].greedy == with_interval(report["policies"]["rl"]["greedy"])
    assert rows["rl"].sampled == percent(report["policies"]["rl"]["sampled"]["success"])
    assert rows["sft"].tokens == "1,000" and rows["synth"].greedy == "–" and rows["base"].time == "–"


def test_the_summary_reaches_neither_torch_nor_plotly() -> None:
    code = "import sys, stages.evaluate.summary as s; print({'torch', 'plotly', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
