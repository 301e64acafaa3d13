import random
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.environments.arithmetic import Arithmetic
from stages.environments.base import GraderError
from stages.environments.config import ArithmeticConfig

SEEDS = st.integers(0, 2**63 - 1)
MODULI = st.integers(2, 100)


def make(**settings) -> Arithmetic:
    return Arithmetic(ArithmeticConfig(**settings))


def evaluated(prompt: str, modulus: int) -> int:
    """The value by Python's own evaluator, with brackets that make it read from left to right."""
    numbers = re.split(r"[-+*]", "".join(prompt.split()).rstrip(":"))
    symbols = re.findall(r"[-+*]", prompt)
    text = str(int(numbers[0]))
    for symbol, number in zip(symbols, numbers[1:], strict=True):
        text = f"(({text}){symbol}{int(number)})%{modulus}"
    return eval(text)


@given(SEEDS, MODULI, st.booleans())
def test_the_answer_is_the_value_of_the_prompt_from_left_to_right(seed, modulus, harder):
    environment = make(modulus=modulus, space_rate=0.5)
    prompt, info = environment.reset(seed=seed, harder=harder)
    assert info["prompt"] == prompt and prompt.endswith(":")
    assert info["answer"] == str(evaluated(prompt, modulus))
    assert environment.step(f">{info['answer']}")[1:] == (1.0, True, {"parsed": True})
    operators = environment.config.harder_operators if harder else environment.config.operators
    assert info["level"] == len(re.findall(r"[-+*]", prompt)) and info["level"] in operators


@given(SEEDS, MODULI)
def test_a_careful_demonstration_is_right_in_every_step_and_earns_the_reward(seed, modulus):
    environment = make(modulus=modulus, misread_rate=0, space_rate=0)
    _, info = environment.reset(seed=seed)
    steps, _, answer = info["trace"].partition(">")
    for step in steps.split(";"):
        left, _, right = step.partition("=")
        assert evaluated(left, modulus) == int(right)
    assert answer == info["answer"]
    assert environment.step(info["trace"])[1] == 1


@given(SEEDS, MODULI)
def test_a_careless_demonstration_reads_every_star_as_plus(seed, modulus):
    environment = make(modulus=modulus, misread_rate=1, space_rate=0)
    _, info = environment.reset(seed=seed)
    steps, _, answer = info["trace"].partition(">")
    for step in steps.split(";"):
        left, _, right = step.partition("=")
        assert evaluated(left.replace("*", "+"), modulus) == int(right)
    assert [symbol for symbol in steps if symbol in "+-*"] == [symbol for symbol in info["prompt"] if symbol in "+-*"]
    assert environment.step(info["trace"])[1] == float(answer == info["answer"])


def test_the_recipe_of_the_documentation_gives_the_documented_form():
    environment = make()
    assert environment.value("7+5*3-2:") == 4
    task = {"prompt": "7+5*3-2:", "answer": "4", "trace": "", "level": 3}
    environment.reset(task=task)
    assert environment.step("7+5=2;2*3=6;6-2=4>4")[1] == 1


def test_rates_are_the_shares_asked_for():
    environment = make(misread_rate=0.7, space_rate=0.1)
    tasks = [environment.reset(seed=seed)[1] for seed in range(4000)]
    accepted = [task["trace"].endswith(f">{task['answer']}") for task in tasks]
    assert 0.52 < sum(accepted) / 4000 < 0.59
    assert 0.06 < sum(" " in task["prompt"] for task in tasks) / 4000 < 0.12


@given(SEEDS, MODULI, st.sampled_from(Arithmetic.perturbations))
def test_a_perturbed_prompt_has_the_same_value_and_another_form(seed, modulus, kind):
    environment = make(modulus=modulus)
    prompt, info = environment.reset(seed=seed)
    perturbed = environment.perturb(prompt, kind, random.Random(seed))
    assert str(environment.value(perturbed)) == info["answer"]
    assert environment.perturb(prompt, kind, random.Random(seed)) == perturbed
    environment.reset(task={**info, "prompt": perturbed})
    assert environment.step(f">{info['answer']}")[1] == 1


def test_each_perturbation_does_change_prompts():
    environment = make(space_rate=0)
    for kind in environment.perturbations:
        forms = {environment.perturb("7+5*3-2:", kind, random.Random(seed)) for seed in range(50)}
        assert len(forms) > 10
    with pytest.raises(ValueError, match=r"no perturbation 'case'; it has: spaces, zeros"):
        environment.perturb("1+1:", "case", random.Random(0))


@pytest.mark.parametrize(
    ("completion", "reward", "parsed"),
    [
        (">4", 1, True),
        ("4", 0, False),
        ("", 0, False),
        (">", 0, False),
        (">04", 0, True),
        (">5", 0, True),
        (">4>5", 0, True),
        (">5>4", 1, True),
        (">4;", 0, False),
        (">٤", 0, False),
        ("x" * 100_000 + ">4", 1, True),  # the whole completion is read, however long
    ],
)
def test_the_reward_is_for_what_follows_the_last_mark(completion, reward, parsed):
    environment = make()
    environment.reset(task={"prompt": "7+5*3-2:", "answer": "4", "trace": "", "level": 3})
    assert environment.step(completion)[1:] == (reward, True, {"parsed": parsed})


def test_the_grader_believes_the_prompt_and_not_the_answer_beside_it():
    environment = make()
    environment.reset(task={"prompt": "1+1:", "answer": "9", "trace": "", "level": 1})
    assert environment.step(">9")[1] == 0 and environment.step(">2")[1] == 1


def test_a_task_that_cannot_be_graded_is_named_in_the_error():
    environment = make()
    environment.reset(task={"prompt": "1+:", "answer": "1", "trace": "", "level": 1})
    with pytest.raises(GraderError, match=r"arithmetic: grading failed on the task '1\+:'"):
        environment.step(">1")


def test_an_environment_that_ends_the_program_is_a_grader_that_fails(monkeypatch: pytest.MonkeyPatch):
    environment = make()
    environment.reset(seed=1)
    monkeypatch.setattr(environment, "grade", lambda *_: sys.exit(0))
    with pytest.raises(GraderError, match="grading failed .*SystemExit: 0"):
        environment.step(">1")


def test_one_seed_gives_one_task_and_the_global_random_state_plays_no_part():
    first, second = make(), make()
    random.seed(1)
    task = first.reset(seed=3)[1]
    random.seed(2)
    second.reset(seed=8)
    assert second.reset(seed=3)[1] == task
    assert first.reset(task=task) == (task["prompt"], task)


def test_prompts_that_differ_in_white_space_are_one_task():
    assert make().canonical(" 7 + 5 : ") == make().canonical("7+5:")


def test_a_person_can_read_the_task_and_what_was_made_of_it():
    environment = make()
    assert environment.render() == "arithmetic: no task yet"
    environment.reset(task={"prompt": "1+1:", "answer": "2", "trace": "", "level": 1})
    environment.step("1+1=3>3")
    assert environment.render("text") == "prompt: 1+1:\nanswer: 2\naction: 1+1=3>3\nreward: 0"
    with pytest.raises(ValueError, match=r"render mode 'rgb_array' is unknown"):
        environment.render("rgb_array")


@pytest.mark.parametrize("wrong", [{"operators": ()}, {"operators": (0,)}, {"harder_operators": ()}, {"modulus": 1}])
def test_settings_that_pose_no_task_are_refused(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        ArithmeticConfig(**wrong)
