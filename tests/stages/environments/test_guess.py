import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.environments.base import BaseEnvironment
from stages.environments.config import GuessConfig
from stages.environments.guess import HIGHER, RANGE, guess
from stages.environments.registry import make
from stages.environments.self_test import self_test

TASK = {"prompt": "10-25:", "answer": "21", "trace": "11", "level": 16}


def play(environment: BaseEnvironment, actions: list[str]) -> tuple[list[str], float, bool]:
    """(Observations, reward of the episode, whether it is done)."""
    observations, total, done = [], 0.0, False
    for action in actions:
        assert not done
        observation, reward, done, _ = environment.step(action)
        observations.append(observation)
        total += reward
    return observations, total, done


def test_an_episode_is_led_to_the_number_and_earns_one() -> None:
    environment = make(GuessConfig())
    environment.reset(task=TASK)
    assert play(environment, ["17", "I take 24.", "21"]) == (["HIGHER 18-25:", "LOWER 18-23:", ""], 1.0, True)
    assert environment.render().splitlines() == [
        *("prompt: 10-25:", "answer: 21", "action: 17", "observation: HIGHER 18-25:"),
        *("action: I take 24.", "observation: LOWER 18-23:", "action: 21", "reward: 1"),
    ]


def test_a_game_may_have_begun_in_the_prompt() -> None:
    environment = make(GuessConfig())
    environment.reset(task={**TASK, "prompt": "10-25:14 HIGHER 15-25:"})
    assert play(environment, ["17", "21"]) == (["HIGHER 18-25:", ""], 1.0, True)
    prompts = [environment.reset(seed=seed)[0] for seed in range(40)]
    assert {prompt.count(":") for prompt in prompts} == {1, 2, 3}


def test_a_guess_beyond_the_range_does_not_widen_it() -> None:
    environment = make(GuessConfig())
    environment.reset(task=TASK)
    assert play(environment, ["20", "5", "900"])[0] == ["HIGHER 21-25:", "HIGHER 21-25:", "LOWER 21-25:"]


def test_after_the_last_guess_it_is_over_and_earns_nothing() -> None:
    environment = make(GuessConfig(turns=3))
    environment.reset(task=TASK)
    assert play(environment, ["17", "what?", "22"]) == (["HIGHER 18-25:", "NUMBER? 18-25:", ""], 0.0, True)
    environment.reset(task=TASK)
    assert environment.turns_left == 3


@given(st.integers(0, 2**32), st.booleans())
def test_halving_finds_every_number_in_time(seed: int, harder: bool) -> None:
    environment = make(GuessConfig())
    prompt, _ = environment.reset(seed=seed, harder=harder)
    low, high = (int(part) for part in RANGE.findall(prompt)[-1])
    reward, done = 0.0, False
    while not done:
        middle = (low + high) // 2
        observation, reward, done, _ = environment.step(str(middle))
        low, high = (middle + 1, high) if observation.startswith(HIGHER) else (low, middle - 1)
        assert done or observation.endswith(f" {low}-{high}:")
    assert reward == 1


@given(st.integers(0, 2**32), st.booleans())
def test_a_seed_is_a_task_whose_number_lies_in_its_range(seed: int, harder: bool) -> None:
    first, again = (make(GuessConfig()).reset(seed=seed, harder=harder) for _ in range(2))
    assert first == again
    low, high = (int(part) for part in RANGE.findall(first[0])[-1])
    assert low <= int(first[1]["answer"]) <= high and high - low + 1 == first[1]["level"] <= (31 if harder else 16)


def test_the_grader_passes_the_self_test_whatever_the_number_of_turns() -> None:
    for turns in (1, 2, 5):
        self_test(make(GuessConfig(turns=turns)))


def test_a_grader_that_gives_in_to_what_is_said_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = make(GuessConfig())
    answer = type(environment).answer

    def tired(self: BaseEnvironment, task: dict[str, str], action: str) -> object:
        return answer(self, task, task["answer"] if self.turns_left == 2 else action)

    monkeypatch.setattr(type(environment), "answer", tired)
    with pytest.raises(ValueError, match="gives an absurd answer '' the reward 1, not 0"):
        self_test(environment)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("42", 42), ("is it 7? no, 42.", 42), ("1 2 3", 3), ("-5", -5), ("007", 7), ("0", 0)),
        *(("9" * 5000, 999999999), ("4.5", None), ("1,000", None), ("", None), ("٣", None)),
    ],
)
def test_the_last_number_is_the_guess(text: str, number: int | None) -> None:
    assert guess(text) == number


def test_spaces_change_the_prompt_and_not_the_task() -> None:
    environment = make(GuessConfig())
    perturbed = {environment.perturb("10-25:", "spaces", random.Random(seed)) for seed in range(9)}
    assert len(perturbed) > 1 and {environment.canonical(prompt) for prompt in perturbed} == {"10-25:"}
    with pytest.raises(ValueError, match="no perturbation 'case'"):
        environment.perturb("10-25:", "case", random.Random(0))


def test_copies_of_one_environment_play_episodes_of_their_own() -> None:
    one = make(GuessConfig(turns=3))
    other = copy.copy(one)
    one.reset(task=TASK)
    other.reset(task={**TASK, "answer": "12"})
    assert (one.step("17")[0], other.step("17")[0]) == ("HIGHER 18-25:", "LOWER 10-16:")
    assert one.step("19")[0] == "HIGHER 20-25:"
    assert (one.turns_left, other.turns_left) == (1, 2)
