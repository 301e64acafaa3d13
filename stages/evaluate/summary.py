"""The table that a run ends with, as rows of text, for whoever prints it. Knows no torch."""

from dataclasses import dataclass

from stages.evaluate.words import MISSING, Report, duration, number, with_interval

COLUMNS = ("stage", "greedy", "sampled", "generalisation", "robustness", "seconds", "tokens")
"""The fields of a row, in order; the four in the middle are shares of success with their intervals."""


@dataclass(frozen=True)
class SummaryRow:
    """One stage: what its policy reaches, and what it cost. A dash stands where a stage has no such number."""

    stage: str
    greedy: str = MISSING
    sampled: str = MISSING
    generalisation: str = MISSING
    robustness: str = MISSING
    seconds: str = MISSING
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
                **{suite: with_interval(measure) for suite, measure in suites.items()},
                seconds=duration(cost.get("seconds")),
                tokens=number(cost.get("tokens")),
            )
        )
    return rows
