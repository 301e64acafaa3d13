"""Episodes of several turns, by the real torch engine: the environment is scripted, the policy is not."""

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from data.packing import pack_masked
from data.tokenizer import character_tokenizer
from stages.environments.base import Answer, BaseEnvironment, Task
from stages.rl.rollouts import Rewarded, tabulate
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Request, generate
from stages.rollout.episodes import play_episodes
from stages.rollout.flight import Played, Start, turn_seed
from stages.rollout.torch.engine import TorchEngine
from stages.trainer import attention
from stages.trainer.policy import Policy

TOKENIZER = character_tokenizer("ab12;")
EOS = 2
VOCABULARY = len(TOKENIZER)


class Talk(BaseEnvironment):
    """Says `1;`, then `2;`, and is done with the third turn; each turn earns its number."""

    name = "talk"
    perturbations = ()
    cpu_seconds = None
    max_turns = 3

    def __init__(self, heard: list[tuple[str, int]]) -> None:
        super().__init__()
        self.heard = heard

    def draw(self, rng: random.Random, harder: bool) -> Task:
        return {"prompt": "?", "answer": "", "trace": "", "level": 0}

    def perturb(self, prompt: str, kind: str, rng: random.Random) -> str:
        return prompt

    def grade(self, task: Task, completion: str) -> tuple[float, bool]:
        return float(completion == "a"), "a" in completion

    def answer(self, task: Task, action: str) -> Answer:
        turn = 4 - self.turns_left
        self.heard.append((task["id"], turn))
        if task["answer"] == "broken":
            raise ZeroDivisionError
        return Answer("" if turn == 3 else f"{turn};", float(turn), turn == 3, "a" in action)


class Slow(Talk):
    """Takes a while for each turn, and never twice the same."""

    cpu_seconds = 1

    def _answer(self, task: Task, action: str) -> Any:
        time.sleep(random.random() / 50)
        return self.answer(task, action)


class Idle(TorchEngine):
    """Does nothing in the 98 steps after the first one."""

    steps = 0

    def step(self) -> list[tuple[int, Completion]]:
        self.steps += 1
        return [] if 1 < self.steps < 100 else super().step()


def engine(context: int = 64) -> TorchEngine:
    torch.manual_seed(1)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3Config(
        **shape,
        vocab_size=VOCABULARY,
        intermediate_size=48,
        head_dim=8,
        max_position_embeddings=context,
        initializer_range=0.1,
        tie_word_embeddings=True,
        eos_token_id=EOS,
    )
    return TorchEngine(AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME).eval(), EOS)


def start(number: int) -> Start:
    prompt = [1, *(3 + (number + place) % 4 for place in range(1 + number % 4))]
    return Start({**Talk([]).draw(random.Random(), False), "id": f"row-{number}"}, prompt, 100 + number)


STARTS = [start(number) for number in range(20)]


def play(
    player: TorchEngine,
    starts: Sequence[Start] = STARTS,
    heard: list[tuple[str, int]] | None = None,
    slots: int = 8,
    kind: type[Talk] = Talk,
) -> list[Played]:
    sampling = SamplingConfig(max_new_tokens=8, slots=slots)
    progress: list[int] = []
    environment = kind([] if heard is None else heard)
    played = play_episodes(player, TOKENIZER, environment, starts, sampling, on_progress=progress.append)
    assert progress == sorted(progress) and progress[-1] == len(starts)
    return played


def sequence(episode: Played) -> list[int]:
    tokens = list(episode.start.prompt)
    for seen, completion in zip([[], *episode.observations], episode.completions, strict=True):
        tokens += [*seen, *completion.tokens]
    return tokens


def test_an_episode_of_three_turns_has_its_tokens_mask_and_versions() -> None:
    player = engine()
    player.version = 7
    episodes = play(player)
    whole = next(episode for episode in episodes if episode.finished)
    assert len(whole.completions) == 3 and whole.reward == 1 + 2 + 3
    assert whole.answered == ["1;", "2;"] and all(completion.tokens[-1] == EOS for completion in whole.completions)
    assert whole.text == "\n".join([whole.said[0], "1;", whole.said[1], "2;", whole.said[2]])

    table = tabulate([Rewarded(0, whole, 24, [6.0], 6.0)], 1)
    one, two, three = (completion.tokens for completion in whole.completions)
    first, second = (
        [TOKENIZER.convert_tokens_to_ids(c) for c in "1;"],
        [TOKENIZER.convert_tokens_to_ids(c) for c in "2;"],
    )
    prompt = list(whole.start.prompt)
    assert table.tokens.tolist() == [*prompt, *one, *first, *two, *second, *three] == sequence(whole)
    chosen = [False] * len(prompt) + [True] * len(one) + [False, False] + [True] * len(two) + [False, False]
    assert table.mask.tolist() == chosen + [True] * len(three)
    assert set(table.versions[table.mask]) == {7} and set(table.versions[~table.mask]) == {-1}
    assert (table.logprobs[table.mask] < 0).all() and not table.logprobs[~table.mask].any()
    assert table.turns.tolist() == [3] and table.completion_lengths.tolist() == [len(one) + len(two) + len(three)]


def test_log_probabilities_of_all_turns_are_those_of_the_policy() -> None:
    player = engine()
    episodes = play(player)
    table = tabulate([Rewarded(0, episode, 24, [0.0], 0.0) for episode in episodes], 1)
    assert {1, 2, 3} == set(table.turns.tolist())
    with torch.no_grad():
        found = Policy(player.model)(pack_masked([table.sequence(index) for index in range(len(table))])).logprobs
    np.testing.assert_allclose(table.logprobs[table.mask], found.numpy(), atol=1e-5)


def test_an_episode_ends_with_the_turn_that_was_cut_and_that_turn_is_not_graded() -> None:
    cut = [episode for episode in play(engine()) if episode.completions[-1].reason == "length"]
    assert {len(episode.completions) for episode in cut} == {1, 2, 3}
    for episode in cut:
        assert not episode.finished and not episode.parsed and len(episode.completions[-1].tokens) == 8
        assert episode.reward == sum(range(1, len(episode.completions)))


def test_an_episode_without_room_for_another_turn_ends_unfinished() -> None:
    episodes = play(engine(context=12))
    lengths = [len(sequence(episode)) for episode in episodes]
    assert max(lengths) <= 12
    stopped = [episode for episode in episodes if episode.completions[-1].finished and not episode.finished]
    assert stopped
    for episode in stopped:
        assert len(sequence(episode)) + 2 >= 12 and len(episode.observations) == len(episode.completions) - 1


def test_a_failed_grader_ends_its_episode_alone_and_says_why() -> None:
    broken = [replace(start, task={**start.task, "answer": "broken"}) for start in STARTS[:10]]
    episodes, undisturbed = play(engine(), [*broken, *STARTS[10:]]), play(engine())
    failed = [episode for episode in episodes if episode.error]
    assert failed and all(episode.start in broken and len(episode.completions) == 1 for episode in failed)
    assert all("talk: grading failed on the task '?': ZeroDivisionError" in episode.error for episode in failed)
    for one, other in zip(episodes[10:], undisturbed[10:], strict=True):
        assert (sequence(one), one.reward) == (sequence(other), other.reward)


def test_turns_of_episodes_are_interleaved_and_each_has_an_environment_of_its_own() -> None:
    heard: list[tuple[str, int]] = []
    play(engine(), heard=heard, slots=4)
    by_episode = {name: [turn for other, turn in heard if other == name] for name, _ in heard}
    assert all(turns == list(range(1, len(turns) + 1)) for turns in by_episode.values())
    changes = sum(one[0] != other[0] for one, other in pairwise(heard))
    assert changes > len(by_episode), "episodes were played one after the other"


@pytest.mark.parametrize("slots", [3, 20])
def test_which_turn_ends_first_changes_no_episode(slots: int) -> None:
    for one, other in zip(play(engine(), slots=8), play(engine(), slots=slots), strict=True):
        assert sequence(one) == sequence(other)
        assert (one.reward, one.finished, one.parsed) == (other.reward, other.finished, other.parsed)


def test_the_same_calls_give_the_same_bits() -> None:
    for one, other in zip(play(engine()), play(engine()), strict=True):
        for left, right in zip(one.completions, other.completions, strict=True):
            assert left.tokens == right.tokens and np.array_equal(left.logprobs, right.logprobs)


def test_an_observation_that_the_tokenizer_does_not_know_names_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Talk, "answer", lambda self, task, action: Answer("x", 0.0, False, True))
    with pytest.raises(
        ValueError, match=r"row row-\d+: talk answers 'x': 'x' in 'x' is not in the tokenizer's alphabet"
    ):
        play(engine())


def test_seeds_of_turns_are_distinct_and_the_first_is_the_episodes_own() -> None:
    seeds = {turn_seed(seed, turn) for seed in range(30) for turn in range(30)}
    assert len(seeds) == 900 and turn_seed(5, 0) == 5 and all(0 <= seed < 2**63 for seed in seeds)


def test_a_turn_as_long_as_all_before_it_may_end_with_its_first_token() -> None:
    """Its row goes on writing to that token's place while its neighbours are generated."""
    player, sampling, long = engine(), SamplingConfig(max_new_tokens=6, slots=8), [1, *[5, 6] * 11]
    ends = next(s for s in range(999) if len(generate(player, [Request(long, s)], sampling)[0].tokens) == 1)
    goes_on = next(s for s in range(999) if len(generate(player, [Request([1, 3], s)], sampling)[0].tokens) == 6)
    fills = next(s for s in range(999) if len(generate(player, [Request(long[:17], s)], sampling)[0].tokens) == 6)
    player.start(sampling)
    found: dict[int, Completion] = {}
    player.add(0, Request(long[:17], fills))  # after it, each row has room for 17 + 6 tokens
    while not found:
        found.update(player.step())
    player.add(1, Request(long, ends))
    for key in range(2, 8):
        player.add(key, Request([1, 3], goes_on))
    while len(found) < 8:
        found.update(player.step())
    assert [len(found[key].tokens) for key in range(8)] == [6, 1, *[6] * 6]


@pytest.mark.parametrize("turns", [1, 3])
def test_a_slow_environment_changes_no_bit(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    monkeypatch.setattr(Talk, "max_turns", turns)
    once, again, quick = play(engine(), kind=Slow), play(engine(), kind=Slow), play(engine())
    assert any(len(episode.completions) == turns and not episode.error for episode in once)
    for one, other, fast in zip(once, again, quick, strict=True):
        assert sequence(one) == sequence(other) == sequence(fast) and one.reward == other.reward == fast.reward
        for left, right in zip(one.completions, other.completions, strict=True):
            assert np.array_equal(left.logprobs, right.logprobs)


def test_a_slow_environment_grades_several_while_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Busy(Slow):
        max_turns = 1

        def _answer(self, task: Task, action: str) -> Any:
            events.append("begin")
            time.sleep(0.05)
            events.append("end")
            return self.answer(task, action)

    player = engine()
    step = player.step
    monkeypatch.setattr(player, "step", lambda: [events.append("step"), step()][1])
    play(player, kind=Busy, slots=4)
    place = events.index("begin")
    assert "step" in events[place : events.index("end")]
    assert any(one == other == "begin" for one, other in pairwise([event for event in events if event != "step"]))


def test_an_engine_that_does_nothing_is_no_progress() -> None:
    model, told, sampling = engine().model, list[int](), SamplingConfig(max_new_tokens=40)
    asked = [Request([1, 3], seed) for seed in range(9)]
    for play_some in (
        lambda player: play_episodes(player, TOKENIZER, Talk([]), STARTS, sampling, on_progress=told.append),
        lambda player: generate(player, asked, sampling, on_progress=told.append),
    ):
        told.clear()
        play_some(TorchEngine(model, EOS))
        busy, idle = [*told], Idle(model, EOS)
        told.clear()
        play_some(idle)
        assert idle.steps >= 100 and told == busy


@pytest.mark.parametrize(
    "answer", [Answer(None, 0.0, False, True), Answer(5, 0.0, False, True), ("1;", 0.0), Answer("", None, True, True)]
)
def test_what_is_no_answer_names_the_row_and_leaves_the_engine_idle(
    monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(Talk, "answer", lambda self, task, action: answer)
    player, played = engine(), []
    with pytest.raises(
        ValueError, match=r"row row-\d+: talk gives .* on the task .*, but `answer` must return an Answer"
    ):
        played = play(player)
    monkeypatch.undo()
    assert not played and len(play(player)) == len(STARTS)
