"""Warnings on curves of runs that went well, and of runs that did not."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.warnings import Warned, read_warnings, write_warnings
from stages.rl.log import StepLog
from stages.rl.warnings import RULES, Row, Watch, warnings_of

# The default run, seed 1: forty steps of Dr. GRPO. REWARD is its success as well.
REWARD = [
    *(0.36, 0.55, 0.47, 0.53, 0.45, 0.54, 0.70, 0.64, 0.53, 0.71),
    *(0.53, 0.61, 0.68, 0.72, 0.71, 0.69, 0.69, 0.70, 0.70, 0.76),
    *(0.78, 0.87, 0.74, 0.85, 0.78, 0.70, 0.77, 0.78, 0.83, 0.77),
    *(0.83, 0.82, 0.90, 0.85, 0.80, 0.85, 0.75, 0.83, 0.91, 0.86),
]
ENTROPY = [
    *(0.057, 0.055, 0.053, 0.066, 0.056, 0.054, 0.071, 0.058, 0.064, 0.068),
    *(0.064, 0.052, 0.052, 0.073, 0.061, 0.063, 0.061, 0.067, 0.057, 0.046),
    *(0.059, 0.046, 0.052, 0.044, 0.055, 0.053, 0.035, 0.046, 0.045, 0.044),
    *(0.037, 0.044, 0.026, 0.039, 0.035, 0.038, 0.036, 0.051, 0.026, 0.030),
]
LENGTH = [
    *(21.0, 22.0, 21.1, 21.3, 21.3, 20.8, 19.1, 21.1, 21.3, 21.2),
    *(21.7, 21.3, 20.8, 20.2, 22.2, 22.6, 21.0, 20.4, 21.0, 21.1),
    *(19.8, 20.2, 20.1, 19.6, 19.7, 20.8, 20.6, 20.9, 19.4, 21.2),
    *(21.9, 21.5, 20.8, 20.4, 20.8, 21.2, 21.5, 22.0, 20.6, 22.6),
]
NO_SIGNAL = [
    *(0.53, 0.41, 0.31, 0.38, 0.25, 0.25, 0.50, 0.44, 0.28, 0.41),
    *(0.22, 0.38, 0.31, 0.44, 0.41, 0.38, 0.47, 0.44, 0.34, 0.50),
    *(0.41, 0.50, 0.38, 0.50, 0.34, 0.28, 0.41, 0.31, 0.44, 0.41),
    *(0.47, 0.59, 0.56, 0.56, 0.47, 0.47, 0.38, 0.50, 0.47, 0.62),
]

Curve = Callable[[int], float]


def history(steps: int = 60, **curves: float | Curve) -> list[Row]:
    """Steps of a run in which nothing is amiss but what `curves` say."""
    healthy: dict[str, float | Curve] = {
        "reward": lambda step: 0.3 + 0.008 * step,
        "success": lambda step: 0.3 + 0.008 * step,
        "completion_length": 20.0,
        "finished": 1.0,
        "groups_without_signal": 0.4,
        "entropy": lambda step: 0.5 * math.exp(-step / 100),
        "kl": 0.001,
        "clip_share": 0.002,
        "explained_variance": 0.3,
    }
    all_of_them = healthy | curves
    return [
        {"step": step, **{name: value(step) if callable(value) else value for name, value in all_of_them.items()}}
        for step in range(1, steps + 1)
    ]


def names(rows: list[Row]) -> list[str]:
    return [warned.name for warned in warnings_of(rows).warned]


def test_the_default_run_is_not_warned_of() -> None:
    columns = zip(REWARD, ENTROPY, LENGTH, NO_SIGNAL, strict=True)
    rows: list[Row] = [
        {
            **{"step": step, "reward": reward, "success": reward, "entropy": entropy, "completion_length": length},
            **{"groups_without_signal": signal, "finished": 1.0, "kl": 0.0002, "clip_share": 0.001},
        }
        for step, (reward, entropy, length, signal) in enumerate(columns, 1)
    ]
    assert names(rows) == []


def test_a_healthy_run_is_not_warned_of() -> None:
    assert names(history()) == []


def after(step: int, before: float, then: float) -> Curve:
    return lambda now: then if now > step else before


FLAT: dict[str, float | Curve] = {"reward": 0.3, "success": 0.3}
TROUBLE: dict[str, dict[str, float | Curve]] = {
    "entropy collapse": {"entropy": lambda step: 0.5 * math.exp(-step / 8)},
    "length collapse": {"completion_length": after(20, 20.0, 3.0), "success": 0.3},
    "completions cut": {"finished": after(20, 1.0, 0.2)},
    "no signal": {"groups_without_signal": after(20, 0.4, 1.0)},
    "reward stuck": FLAT,
    "reward falls": {"reward": after(40, 0.5, 0.1)},
    "kl explodes": {"kl": after(20, 0.001, 3.0)},
    "far from reference": {"reference_kl": lambda step: step / 40},
    "clip share high": {"clip_share": after(20, 0.01, 0.6)},
    "critic useless": {"explained_variance": after(20, 0.3, -1.0)},
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_each_kind_of_trouble_is_warned_of_once_with_what_to_try(trouble: str) -> None:
    found = [warned for warned in warnings_of(history(**TROUBLE[trouble])).warned if warned.name == trouble]
    (warned,) = found
    assert warned.step > 5 and any(digit in warned.seen for digit in "0123456789")
    assert "try" in warned.advice.lower() or "Where all fail" in warned.advice


def test_every_rule_has_its_trouble_here() -> None:
    assert {rule.__name__.replace("_", " ") for rule, _ in RULES} == TROUBLE.keys()


def test_what_comes_again_is_warned_of_again_and_what_hovers_is_not() -> None:
    twice = history(kl=lambda step: 1.0 if 10 < step <= 20 or 40 < step <= 50 else 0.001)
    assert names(twice) == ["kl explodes", "kl explodes"]
    hovering = history(kl=lambda step: 0.11 if step % 2 else 0.095)
    assert names(hovering) == ["kl explodes"]


def test_one_bad_step_is_not_trouble() -> None:
    assert names(history(kl=lambda step: 0.3 if step == 30 else 0.001)) == []


def test_a_task_that_is_solved_may_lose_its_entropy_and_its_signal() -> None:
    solved: dict[str, float | Curve] = {"success": lambda step: min(1, 0.3 + step / 20)}
    assert names(history(**solved, reward=solved["success"], entropy=lambda step: 0.5 * math.exp(-step / 8))) == []
    agreeing = history(**solved, reward=solved["success"], groups_without_signal=lambda step: min(1, step / 20))
    assert names(agreeing) == []


def test_shorter_completions_that_succeed_more_often_are_not_a_collapse() -> None:
    assert names(history(completion_length=after(20, 20.0, 5.0))) == []


rows_of_noise = st.lists(
    st.dictionaries(
        st.sampled_from(["reward", "success", "entropy", "completion_length", "finished", "kl", "explained_variance"]),
        st.none() | st.floats(-3, 3) | st.sampled_from([0.0, 1.0]),
    ),
    max_size=40,
)


@given(rows_of_noise, st.integers(0, 40))
def test_a_restart_warns_of_neither_less_nor_more(noise: list[dict[str, float | None]], cut: int) -> None:
    rows: list[Row] = [{**row, "step": step} for step, row in enumerate(noise, 1)]
    whole = warnings_of(rows)
    resumed: Watch = warnings_of(rows[:cut])
    for step, row in enumerate(rows[cut:], cut + 1):
        resumed.add(min(step, len(rows)), row)
    assert resumed == whole


def test_the_log_warns_in_its_lines_in_a_file_and_as_if_nothing_had_stopped_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = history(40, kl=after(20, 0.001, 3.0))
    log = StepLog(tmp_path, 40, True)
    log.resume(0)
    for row in rows[:29]:
        log.step(int(row["step"] or 0), {name: value for name, value in row.items() if value and name != "step"})
        if row["step"] == 20:
            log.commit(20)
    log.close()
    (warned,) = read_warnings(tmp_path)
    assert warned.name == "kl explodes" and f"warning: {warned}" in capsys.readouterr().out
    again = StepLog(tmp_path, 40, True)
    again.resume(20)
    assert read_warnings(tmp_path) == []  # what lay beyond the checkpoint is gone, and comes again
    for row in rows[20:]:
        again.step(int(row["step"] or 0), {name: value for name, value in row.items() if value and name != "step"})
    again.close()
    assert read_warnings(tmp_path) == [warned]


def test_the_line_of_a_step_leaves_out_what_it_has_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StepLog(tmp_path, 9, True)
    log.resume(0)
    log.step(1, {"reward": 0.25, "success": 0.25, "completion_length": 12.34, "parity": 1e-6})
    log.close()
    assert capsys.readouterr().out == "step 1/9: reward 0.250, success 25%, length 12.3\n"


def test_other_ranks_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = StepLog(tmp_path, 9, False)
    log.resume(0)
    log.step(1, {"reward": 0.25})
    log.commit(1)
    log.close()
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == ""


def test_warnings_survive_their_file(tmp_path: Path) -> None:
    assert read_warnings(tmp_path) == []
    warned = [Warned(3, "entropy collapse", "entropy is 0.01", "Try <less> of it.")]
    write_warnings(tmp_path, warned)
    assert read_warnings(tmp_path) == warned
