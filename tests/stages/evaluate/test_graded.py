import random
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from data.tokenizer import character_tokenizer, encode_completion
from stages.environments.base import BaseEnvironment, Task
from stages.evaluate.graded import SCHEMA, graded_row
from stages.evaluate.report import comparisons, measure, noise_floor
from stages.evaluate.statistics import Bootstrap
from stages.evaluate.suites import GREEDY, NOISE_FLOOR, POLICIES, Case
from stages.rollout.engine import Completion
from stages.rollout.flight import Flight, Start

BOOTSTRAP = Bootstrap(100, 0.95, seed=1)


class Fragile(BaseEnvironment):
    """Its grader cannot bear a completion that says `boom`, and finds no answer in one that says nothing."""

    name = "fragile"
    perturbations = ()
    cpu_seconds = None

    def draw(self, rng: random.Random, harder: bool) -> Task:
        return {"prompt": "1+1:", "answer": "2", "trace": "", "level": 1}

    def grade(self, task: Task, completion: str) -> tuple[float, bool]:
        if completion == "boom":
            raise ZeroDivisionError
        return float(completion == task["answer"]), bool(completion)

    def perturb(self, prompt: str, kind: str, rng: random.Random) -> str:
        return prompt


def table(answers: list[tuple[str, str, bool]]) -> pa.Table:
    """Rows of (prompt id, completion, finished)."""
    return pa.Table.from_pylist([row(*answer) for answer in answers], schema=SCHEMA)


def row(key: str, text: str, finished: bool) -> dict[str, Any]:
    task, tokenizer = {**Fragile().draw(random.Random(), False), "id": key}, character_tokenizer("bmo23")
    tokens = encode_completion(tokenizer, text)
    reason = "stop" if finished else "length"
    flight = Flight(Start(task, [1], 0), Fragile(), tokenizer, 99)
    said = flight.hear(Completion(tokens, np.zeros(len(tokens), np.float32), np.zeros(len(tokens), np.int32), reason))
    flight.take(partial(flight.grade, said))
    return graded_row(Case(task, "1+1:", 0), flight.played)


def test_parse_failures_grader_errors_and_truncation_are_counted_apart() -> None:
    answers = [("a", "2", True), ("b", "3", True), ("c", "", True), ("d", "2", False), ("e", "boom", True)]
    found = measure(table(answers), BOOTSTRAP)
    assert found["completions"] == {
        "all": 5,
        "graded": 4,
        "succeeded": 1,
        "truncated": 1,
        "parse_failures": 1,
        "grader_errors": 1,
    }
    assert found["success"] == found["reward"]["value"] == 0.25 and found["count"] == 4
    assert found["grader_errors"]["value"] == 0.2 and found["grader_errors"]["count"] == 5


def test_a_grader_error_is_no_zero_and_keeps_its_message() -> None:
    row = table([("e", "boom", True)]).to_pylist()[0]
    assert row["reward"] is None and "ZeroDivisionError" in row["grader_error"] and "1+1:" in row["grader_error"]


def test_a_right_answer_in_an_unfinished_completion_earns_nothing() -> None:
    row = table([("d", "2", False)]).to_pylist()[0]
    assert row["reward"] == 0.0 and not row["finished"]


def test_a_suite_on_which_the_grader_always_fails_has_no_success_rather_than_zero() -> None:
    found = measure(table([("a", "boom", True), ("b", "boom", True)]), BOOTSTRAP, pass_at=(1,))
    assert found["success"] is None and found["count"] == 0 and found["pass_at"]["1"]["value"] is None


def test_pass_at_k_leaves_out_prompts_with_too_few_graded_samples() -> None:
    answers = [("a", "2", True), ("a", "3", True), ("b", "2", True), ("b", "boom", True)]
    found = measure(table(answers), BOOTSTRAP, pass_at=(1, 2))
    assert (found["pass_at"]["1"]["value"], found["pass_at"]["1"]["count"]) == (0.75, 2)
    assert (found["pass_at"]["2"]["value"], found["pass_at"]["2"]["count"]) == (1.0, 1)


def test_prompts_that_one_policy_has_no_grade_for_are_left_out_of_the_pairs() -> None:
    before, after = table([("a", "3", True), ("b", "boom", True)]), table([("a", "2", True), ("b", "2", True)])
    found = comparisons({"base": {GREEDY: before}, "sft": {GREEDY: after}, "rl": {GREEDY: after}}, BOOTSTRAP)
    assert [(f["before"], f["after"], f["count"], f["difference"]) for f in found] == [
        ("base", "sft", 1, 1.0),
        ("sft", "rl", 2, 0.0),
        ("base", "rl", 1, 1.0),
    ]


def test_the_noise_floor_is_the_share_of_changed_completions() -> None:
    first = table([("a", "2", True), ("b", "2", True), ("c", "2", True)])
    again = table([("a", "2", True), ("b", "3", True)])
    rows = {policy: {GREEDY: first, NOISE_FLOOR: again} for policy in POLICIES}
    found = noise_floor(rows, (256, 1))
    assert (found["count"], found["changed"], found["slots"]) == (2, 0.5, [256, 1])
