import json
import random
import threading

import pytest

from stages.environments.base import GraderError
from stages.environments.config import RowsConfig
from stages.environments.registry import make
from stages.environments.self_test import self_test


def environment_of(tmp_path, grader="exact", rows=(("1+1?", "2"), ("2+2?", "4")), **settings):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in rows))
    return make(RowsConfig(path=str(path), grader=grader, **settings))


@pytest.mark.parametrize(
    ("grader", "answer", "completion", "reward"),
    [
        ("exact", "42", " 42\n", 1),
        ("exact", "42", "It is 42.", 0),
        ("contains", "42", "It is 42.", 1),
        ("contains", "42", "答案是42。", 1),
        ("contains", "42", "$42$", 1),
        ("contains", "4", "It is 14.", 0),
        ("contains", "4", "It is -4.", 0),
        ("contains", "4", "It is 3.4", 0),
        ("contains", "4", "It is 4.5", 0),
        ("contains", "4", "It is 4, or so", 1),
        ("contains", "no", "nothing", 0),
        ("contains", "(a|b)", "take (a|b) here", 1),
        ("math", "1/2", "so we get 0.5", 1),
        ("math", "\\frac{1}{2}", "\\boxed{0.5}", 1),
        ("math", "x^2+1", "It is $1+x^2$", 1),
        ("math", "$x^2$", "It is $x^3$", 0),
        ("math", "42", "43", 0),
        ("math", "1,234", "The total is 1234.", 1),
    ],
)
def test_a_completion_is_right_when_the_grader_finds_the_answer_in_it(tmp_path, grader, answer, completion, reward):
    environment = environment_of(tmp_path, grader)
    environment.reset(task={"prompt": "?", "answer": answer, "trace": "", "level": 0})
    assert environment.step(completion)[1:] == (reward, True, {"parsed": True})


@pytest.mark.parametrize(("grader", "completion"), [("exact", " "), ("contains", ""), ("math", "I do not know")])
def test_a_completion_without_any_answer_is_not_parsed(tmp_path, grader, completion):
    environment = environment_of(tmp_path, grader)
    environment.reset(seed=0)
    assert environment.step(completion)[1:] == (0, True, {"parsed": False})


@pytest.mark.parametrize("grader", ["exact", "contains", "math"])
def test_an_answer_at_the_front_of_a_long_completion_is_found(tmp_path, grader):
    environment = environment_of(tmp_path, grader, rows=[("?", "$\\frac{7}{3}$")])
    environment.reset(seed=0)
    text = "$\\frac{7}{3}$" + (" " * 20_000 if grader == "exact" else " and so on" * 2_000)
    assert environment.step(text)[1] == 1


def test_math_is_graded_off_the_main_thread_too(tmp_path):
    environment = environment_of(tmp_path, "math")
    rewards = []

    def grade():
        environment.reset(task={"prompt": "?", "answer": "1/2", "trace": "", "level": 0})
        rewards.append(environment.step("0.5")[1])

    thread = threading.Thread(target=grade)
    thread.start()
    thread.join()
    assert rewards == [1.0]


def test_an_answer_that_math_cannot_read_is_a_grader_error_that_names_the_task(tmp_path):
    environment = environment_of(tmp_path, "math")
    environment.reset(task={"prompt": "why?", "answer": "?", "trace": "", "level": 0})
    with pytest.raises(GraderError, match=r"'why\?'.*is not an expression"):
        environment.step("1")


@pytest.mark.parametrize("grader", ["exact", "contains", "math"])
def test_the_self_test_passes_for_each_grader(tmp_path, grader):
    self_test(environment_of(tmp_path, grader))
    self_test(environment_of(tmp_path, grader), [{"prompt": "?", "answer": "7", "trace": "", "level": 0}])


def test_tasks_come_from_the_file_and_harder_ones_from_the_other(tmp_path):
    environment = environment_of(tmp_path)
    assert {environment.reset(seed=seed)[0] for seed in range(20)} == {"1+1?", "2+2?"}
    with pytest.raises(ValueError, match=r"environment.harder_path is empty"):
        environment.reset(seed=0, harder=True)
    (tmp_path / "harder.jsonl").write_text('{"prompt": "9*9?", "answer": "81", "level": 3}\n')
    environment = environment_of(tmp_path, harder_path=str(tmp_path / "harder.jsonl"))
    assert environment.reset(seed=0, harder=True)[1] == {"prompt": "9*9?", "answer": "81", "trace": "", "level": 3}


def test_perturbations_keep_the_words(tmp_path):
    environment = environment_of(tmp_path)
    prompt = "What is the Sum of one and two and three?"
    rng = random.Random(1)
    assert environment.perturb(prompt, "case", rng) == prompt.lower()
    spaced = environment.perturb(prompt, "spaces", rng)
    assert spaced != prompt and environment.canonical(spaced) == prompt
    with pytest.raises(ValueError, match=r"rows has no perturbation 'zeros'; it has: spaces, case"):
        environment.perturb(prompt, "zeros", rng)


def test_a_config_without_a_file_says_which_key_to_set():
    with pytest.raises(ValueError, match=r"environment.path is empty"):
        make(RowsConfig())
