"""From graded rows to report.json: every number of the dashboard, its interval, and where it comes from."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stages.evaluate.statistics import Bootstrap, Floats, compare, pass_at_k, prompt_means
from stages.evaluate.suites import GREEDY, NOISE_FLOOR, NOISE_POLICY, POLICIES, ROBUSTNESS, SAMPLED, SUITES

PAIRS = (("base", "sft"), ("sft", "rl"), ("base", "rl"))
NUM_SAMPLES = {"greedy": 8, "generalisation": 4}
"""Prompts shown as examples, by suite, and below for each kind of perturbation."""
NUM_SAMPLES_OF_A_KIND = 2

GUARANTEE = (
    "Slots and ranks are fixed by the config, and seeds follow from the prompt, the suite and the sample alone, so the "
    "same code with as many ranks on the same kind of machine gives the same completions. Another batch shape or other "
    "hardware may round differently, and the noise floor says how much that matters."
)

Rows = Mapping[str, Mapping[str, pa.Table]]
"""Graded rows by policy and suite."""
Measure = dict[str, float | int | None]


class Columns:
    """The rows of a suite as numpy columns; the five ways to end exclude one another."""

    def __init__(self, table: pa.Table) -> None:
        """`table` has the schema of `stages.evaluate.graded`."""
        self.ids: NDArray[np.str_] = np.array(table["id"].to_pylist(), dtype=np.str_)
        self.kinds: NDArray[np.str_] = np.array(table["kind"].to_pylist(), dtype=np.str_)
        self.levels: NDArray[np.int64] = table["level"].to_numpy().astype(np.int64)
        self.tokens: Floats = table["tokens"].to_numpy().astype(np.float64)
        self.rewards: Floats = table["reward"].fill_null(0.0).to_numpy().astype(np.float64)
        finished, parsed = table["finished"].to_numpy(), table["parsed"].to_numpy()
        self.ungraded: NDArray[np.bool_] = table["grader_error"].is_valid().to_numpy()
        self.truncated: NDArray[np.bool_] = ~finished
        self.unparsed: NDArray[np.bool_] = finished & ~parsed & ~self.ungraded
        self.success: NDArray[np.bool_] = finished & ~self.ungraded & (self.rewards >= 1)


def measure(table: pa.Table, bootstrap: Bootstrap, pass_at: tuple[int, ...] = ()) -> dict[str, Any]:
    """All that is reported of one policy on one suite. `count` is the number of prompts behind a number.

    `pass_at` is given for suites with several samples of a prompt.
    """
    columns = Columns(table)
    everything = np.ones(len(columns.ids), dtype=bool)
    graded = ~columns.ungraded

    def estimate(values: NDArray[Any], keep: NDArray[np.bool_]) -> Measure:
        return _estimate(columns.ids, values, keep, bootstrap)

    def by(groups: NDArray[Any]) -> dict[str, dict[str, Any]]:
        return {str(g): _success(estimate(columns.success, graded & (groups == g))) for g in np.unique(groups)}

    result: dict[str, Any] = {
        **_success(estimate(columns.success, graded)),
        "reward": estimate(columns.rewards, graded),
        "tokens": estimate(columns.tokens, everything),
        "truncated": estimate(columns.truncated, everything),
        "parse_failures": estimate(columns.unparsed, everything),
        "grader_errors": estimate(columns.ungraded, everything),
        "completions": {
            "all": len(everything),
            "graded": int(graded.sum()),
            "succeeded": int(columns.success.sum()),
            "truncated": int(columns.truncated.sum()),
            "parse_failures": int(columns.unparsed.sum()),
            "grader_errors": int(columns.ungraded.sum()),
        },
        "by_level": by(columns.levels),
    }
    if (columns.kinds != "").any():
        result["by_kind"] = by(columns.kinds)
    if pass_at:
        result["pass_at"] = {str(k): _pass_at(columns, k, bootstrap) for k in pass_at}
    return result


def measure_all(rows: Rows, bootstrap: Bootstrap, pass_at: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """`policies` of the report: by policy and suite, None for a suite that the environment cannot have."""
    policies: dict[str, dict[str, Any]] = {}
    for policy in POLICIES:
        found: dict[str, Any] = dict.fromkeys(SUITES)
        for suite in SUITES:
            if suite in rows[policy]:
                found[suite] = measure(rows[policy][suite], bootstrap, pass_at if suite == SAMPLED else ())
        if found[ROBUSTNESS]:
            found[ROBUSTNESS]["unperturbed"] = _unperturbed(rows[policy], bootstrap)
        policies[policy] = found
    return policies


def _unperturbed(rows: Mapping[str, pa.Table], bootstrap: Bootstrap) -> dict[str, Any]:
    """Greedy success on the prompts of the robustness suite as they were: what the perturbations are held against."""
    plain = Columns(rows[GREEDY])
    same = np.isin(plain.ids, rows[ROBUSTNESS]["id"].to_pylist())
    return _success(_estimate(plain.ids, plain.success, same & ~plain.ungraded, bootstrap))


def comparisons(rows: Rows, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """Success of each later policy against each earlier one on the same prompts, by suite."""
    found: list[dict[str, Any]] = []
    for suite in SUITES:
        for before, after in PAIRS:
            if suite not in rows[before]:
                continue
            first, second = (Columns(rows[policy][suite]) for policy in (before, after))
            paired = compare(
                prompt_means(first.ids, first.success.astype(float), ~first.ungraded),
                prompt_means(second.ids, second.success.astype(float), ~second.ungraded),
                bootstrap,
            )
            found.append({"suite": suite, "before": before, "after": after, **(asdict(paired) if paired else {})})
    return found


def noise_floor(rows: Rows, slots: tuple[int, int]) -> dict[str, Any]:
    """How many greedy completions change when nothing but the batch shape does: `slots` has its two values."""
    again, first = rows[NOISE_POLICY][NOISE_FLOOR], rows[NOISE_POLICY][GREEDY]
    texts = dict(zip(first["id"].to_pylist(), first["completion"].to_pylist(), strict=True))
    pairs = zip(again["id"].to_pylist(), again["completion"].to_pylist(), strict=True)
    changed = [texts[prompt] != text for prompt, text in pairs]
    return {
        "policy": NOISE_POLICY,
        "count": len(changed),
        "changed": sum(changed) / len(changed),
        "slots": list(slots),
        "guarantee": GUARANTEE,
    }


def samples(rows: Rows, answers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Completions of the three policies side by side. The first prompts in id order, so nobody picked them."""
    found: list[dict[str, Any]] = []
    for suite in SUITES:
        if suite == SAMPLED or suite not in rows["rl"]:
            continue
        tables = {policy: rows[policy][suite].to_pylist() for policy in POLICIES}
        shown: dict[str, int] = {}
        for index, row in enumerate(tables["rl"]):
            kind = row["kind"]
            shown[kind] = shown.get(kind, 0) + 1
            if shown[kind] > NUM_SAMPLES.get(suite, NUM_SAMPLES_OF_A_KIND):
                continue
            found.append(
                {
                    "suite": suite,
                    "kind": kind,
                    "level": row["level"],
                    "prompt": row["prompt"],
                    "answer": answers[row["id"]],
                    "policies": {policy: _shown(tables[policy][index]) for policy in POLICIES},
                }
            )
    return sorted(found, key=lambda sample: (SUITES.index(sample["suite"]), sample["kind"]))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("completion", "reward", "finished", "parsed", "grader_error", "tokens")}


def _success(estimate: Measure) -> dict[str, Any]:
    return {"success" if name == "value" else name: value for name, value in estimate.items()}


def _estimate(ids: NDArray[np.str_], values: NDArray[Any], keep: NDArray[np.bool_], bootstrap: Bootstrap) -> Measure:
    """Mean over prompts of the mean over each prompt's kept rows; nulls when no row is kept."""
    _, means = prompt_means(ids, values.astype(np.float64), keep)
    if not len(means):
        return {"value": None, "low": None, "high": None, "count": 0}
    low, high = bootstrap.interval(means)
    return {"value": float(means.mean()), "low": low, "high": high, "count": len(means)}


def _pass_at(columns: Columns, k: int, bootstrap: Bootstrap) -> Measure:
    """A prompt whose grader errors leave fewer than `k` graded samples is left out, and `count` shows it."""
    _, inverse = np.unique(columns.ids, return_inverse=True)
    graded = np.bincount(inverse, weights=~columns.ungraded).astype(np.int64)
    correct = np.bincount(inverse, weights=columns.success).astype(np.int64)
    enough = graded >= k
    if not enough.any():
        return {"value": None, "low": None, "high": None, "count": 0}
    values = pass_at_k(graded[enough], correct[enough], k)
    low, high = bootstrap.interval(values)
    return {"value": float(values.mean()), "low": low, "high": high, "count": len(values)}
