"""The table that a run ends with, as rows of text, for whoever prints it. Knows no torch."""

from dataclasses import dataclass

from stages.evaluate.words import MISSING, Report, duration, number, percent, with_interval

COLUMNS = ("stage", "greedy", "sampled", "generalisation", "robustness", "time", "tokens")
"""The fields of a row, in order; the four in the middle are shares of success, greedy with its interval."""


@dataclass(frozen=True)
class SummaryRow:
    """One stage: what its policy reaches, and what it cost. A dash stands where a stage has no such number."""

    stage: str
    greedy: str = MISSING
    sampled: str = MISSING
    generalisation: str = MISSING
    robustness: str = MISSING
    time: str = MISSING
    tokens: str = MISSING


def summary(report: Report) -> list[SummaryRow]:
    """The rows of report.json in the order of the pipeline: synth, base (before training), sft, rl, evaluate."""
    rows: list[SummaryRow] = []
    for stage in ("synth", "base", "sft", "rl", "evaluate"):
        cost = report["stages"].get(stage, {})
        suites = report["policies"].get(stage, {})
        rows.append(
            SummaryRow(
                stage=stage,
                **{name: _success(name, measure) for name, measure in suites.items()},
                time=duration(cost.get("seconds")),
                tokens=number(cost.get("tokens")),
            )
        )
    return rows


def _success(suite: str, measure: Report | None) -> str:
    if measure is None:
        return MISSING
    return with_interval(measure) if suite == "greedy" else percent(measure["success"])
