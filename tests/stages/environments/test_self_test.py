import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.environments import graders
from stages.environments.arithmetic import Arithmetic
from stages.environments.config import ArithmeticConfig, RowsConfig
from stages.environments.registry import make
from stages.environments.self_test import self_test


def rows_environment(tmp_path, grader: str, answer="42"):
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": "?", "answer": answer}) + "\n")
    return make(RowsConfig(path=str(tmp_path / "tasks.jsonl"), grader=grader))


def test_the_shipped_arithmetic_passes_for_small_and_large_moduli():
    for modulus in (2, 10, 100):
        self_test(make(ArithmeticConfig(modulus=modulus)))


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip() not in ("", "zxqvj"))
)
def test_the_graders_of_text_pass_whatever_the_answer(answer):
    task = {"prompt": "?", "answer": answer, "trace": "", "level": 0}
    for grader in ("exact", "contains"):
        self_test(make(RowsConfig(path="unread.jsonl", grader=grader)), [task])


@pytest.mark.parametrize(
    "answer", ["-3", "1/2", "$\\frac{1}{2}$", "\\boxed{3}", "x^2+1", "(1,2)", "50%", "1,234", "2.50"]
)
def test_the_grader_of_mathematics_passes_for_the_usual_forms_of_answers(answer):
    task = {"prompt": "?", "answer": answer, "trace": "", "level": 0}
    self_test(make(RowsConfig(path="unread.jsonl", grader="math")), [task])


def test_a_grader_that_is_called_with_its_arguments_swapped_is_found(tmp_path, monkeypatch):
    grade = graders.GRADERS["contains"]
    monkeypatch.setitem(graders.GRADERS, "contains", lambda answer, completion: grade(completion, answer))
    with pytest.raises(ValueError, match=r"its own reference answer 'It is 42 .' the reward 0, not 1"):
        self_test(rows_environment(tmp_path, "contains"))


def test_swapped_arguments_are_found_in_arithmetic_too(monkeypatch):
    grade = Arithmetic.grade
    monkeypatch.setattr(
        Arithmetic, "grade", lambda self, task, completion: grade(self, {"prompt": completion}, task["prompt"])
    )
    with pytest.raises(ValueError, match=r"self-test of the environment arithmetic"):
        self_test(make(ArithmeticConfig()))


@pytest.mark.parametrize(
    ("verdict", "what"),
    [
        ((True, True), r"an absurd answer '' the reward 1, not 0"),
        ((False, True), r"reference answer '42' the reward 0"),
    ],
)
def test_a_grader_that_always_says_the_same_is_found(tmp_path, monkeypatch, verdict, what):
    monkeypatch.setitem(graders.GRADERS, "exact", lambda answer, completion: verdict)
    with pytest.raises(ValueError, match=what):
        self_test(rows_environment(tmp_path, "exact"))


def test_a_grader_that_raises_is_found_and_its_task_named(tmp_path):
    with pytest.raises(ValueError, match=r"self-test of the environment rows: .*'\?'.*not an expression"):
        self_test(rows_environment(tmp_path, "math", answer="?!"))


def test_the_task_that_fails_is_named_among_those_given():
    tasks = [
        {"prompt": "1+1:", "answer": "2", "trace": "", "level": 1},
        {"prompt": "1+3:", "answer": "5", "trace": "", "level": 1},
    ]
    with pytest.raises(ValueError, match=r"on the task '1\+3:' \(answer '5'\)"):
        self_test(make(ArithmeticConfig()), tasks)
