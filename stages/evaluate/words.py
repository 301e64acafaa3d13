"""Numbers in plain words, for the dashboard and for the table at the end of a run."""

from collections.abc import Mapping
from typing import Any

NAMES = {"base": "Base model", "sft": "After SFT", "rl": "After RL"}
SHORT = {"base": "Base", "sft": "SFT", "rl": "RL"}
TRAINING = {"sft": "Supervised fine-tuning", "rl": "Reinforcement learning"}
MISSING = "–"

Report = Mapping[str, Any]


def percent(share: float | None, digits: int = 1) -> str:
    """0.4123 as `41.2%`."""
    return MISSING if share is None else f"{100 * share:.{digits}f}%"


def with_interval(measure: Mapping[str, Any] | None) -> str:
    """`41.2% (37.0 to 45.4)` for a record with `success` (or `value`), `low` and `high`."""
    if measure is None:
        return MISSING
    share = measure["success"] if "success" in measure else measure["value"]
    if share is None:
        return MISSING
    return f"{percent(share)} ({100 * measure['low']:.1f} to {100 * measure['high']:.1f})"


def points(difference: float) -> str:
    """0.123 as `+12.3`."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def duration(seconds: float | None) -> str:
    """94.2 as `1 min 34 s`."""
    if seconds is None:
        return MISSING
    whole = round(seconds)
    if whole < 1:
        return "under 1 s"
    hours, minutes, left = whole // 3600, whole // 60 % 60, whole % 60
    parts = [f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(hours or minutes) + [f"{left} s"] * (not hours)
    return " ".join(parts)


def number(value: float | None) -> str:
    """1234567 as `1,234,567`."""
    return MISSING if value is None else f"{value:,.0f}"


def comparison(report: Report, suite: str, before: str, after: str) -> Mapping[str, Any] | None:
    """The paired comparison of two policies on a suite; None when there is none or no prompt was graded for both."""
    for found in report["comparisons"]:
        if (found["suite"], found["before"], found["after"]) == (suite, before, after) and "difference" in found:
            return found
    return None


def verdict(report: Report, before: str, after: str) -> str:
    """One sentence on what the stage that made `after` did to greedy success; no claim without its interval."""
    found = comparison(report, "greedy", before, after)
    if found is None:
        return f"{TRAINING[after]}: no prompt was graded both before and after it."
    one, two = (percent(report["policies"][policy]["greedy"]["success"]) for policy in (before, after))
    if found["low"] > 0:
        return f"{TRAINING[after]} raised success from {one} to {two}."
    if found["high"] < 0:
        return f"{TRAINING[after]} lowered success from {one} to {two}."
    return f"{TRAINING[after]} made no measurable difference: {one} before, {two} after."


def evidence(report: Report, before: str, after: str) -> str:
    """The numbers behind `verdict`."""
    found = comparison(report, "greedy", before, after)
    if found is None:
        return ""
    won, lost = round(found["won"] * found["count"]), round(found["lost"] * found["count"])
    return (
        f"{points(found['difference'])} points ({points(found['low'])} to {points(found['high'])}) on the same "
        f"{number(found['count'])} prompts: {number(won)} won, {number(lost)} lost, "
        f"{number(found['count'] - won - lost)} as before."
    )
