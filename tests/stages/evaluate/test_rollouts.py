"""Samples of the rl stage, picked from its trajectory files for the dashboard."""

from collections.abc import Callable
from typing import Any

import pytest

from checkpoints.manifest import Result
from data.tokenizer import character_tokenizer
from stages.evaluate import rollouts as module
from stages.evaluate.rollouts import rollouts
from stages.trainer.config import ArchitectureConfig

Played = Callable[..., Result]
TOKENIZER = character_tokenizer(ArchitectureConfig().alphabet)


def name(step: int, rank: int = 0, number: int = 0) -> str:
    return f"step-{step:06d}{f'-round-{number}' if number else ''}-rank-{rank:04d}.h5"


def test_a_prompt_has_its_best_its_median_and_its_worst_sample(played: Played, episode: Any) -> None:
    rewards = [0.5, 0.0, 1.0, 0.25, 0.75]
    episodes = [episode(0, "1+2:", reward, (f">{n}",)) for n, reward in enumerate(rewards)]
    (record,) = rollouts(played({name(1): (1, episodes)}), TOKENIZER)
    assert (record["step"], record["prompt"], record["num_samples"]) == (1, "<bos>1+2:", 5)
    found = [(s["which"], s["reward"], s["parts"][0]["text"]) for s in record["samples"]]
    assert found == [("best", 1.0, ">2<eos>"), ("median", 0.5, ">0<eos>"), ("worst", 0.0, ">1<eos>")]


def test_no_sample_is_shown_twice(played: Played, episode: Any) -> None:
    for count, expected in ((1, ["best"]), (2, ["best", "worst"]), (3, ["best", "median", "worst"])):
        result = played({name(1): (1, [episode(0, "1+2:", float(n), (f">{n}",)) for n in range(count)])})
        (record,) = rollouts(result, TOKENIZER)
        assert [sample["which"] for sample in record["samples"]] == expected


def test_prompts_that_teach_come_first_and_what_was_not_graded_is_not_shown(played: Played, episode: Any) -> None:
    episodes = [
        *(episode(0, "1+1:", 1.0, (">2",)) for _ in range(2)),
        *(episode(1, "1+2:", 0.0, (">4",), graded=False) for _ in range(2)),
        *(episode(2, "1+3:", 1.0, (">2",)) for _ in range(2)),
        *(episode(3, "1+4:", reward, (">5",)) for reward in (0.0, 1.0)),
    ]
    found = rollouts(played({name(1): (1, episodes)}), TOKENIZER)
    assert [record["id"] for record in found] == ["row-3", "row-0"]


def test_turns_tell_who_said_what_and_each_term_has_its_value(played: Played, episode: Any) -> None:
    one = episode(0, "1+2:", 0.7, (">1", "2", ">3"), terms=(-0.0, -0.5), finished=False)
    (record,) = rollouts(played({name(1): (1, [one])}, "verifier,brevity"), TOKENIZER)
    (sample,) = record["samples"]
    assert [(part["policy"], part["text"]) for part in sample["parts"]] == [
        (True, ">1<eos>"),
        (False, "2<eos>"),
        (True, ">3<eos>"),
    ]
    assert str(sample["terms"]) == "{'verifier': 0.0, 'brevity': -0.5}"
    assert (sample["tokens"], sample["finished"]) == (6, False)


def test_three_files_are_opened_of_however_many(played: Played, episode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name(step, rank): (step, [episode(0, "1+2:", 1.0, (">3",))]) for step in range(1, 8) for rank in range(3)}
    result, opened, real = played(files), [], module.read_trajectories

    def read(path: Any) -> Any:
        opened.append(path.name)
        return real(path)

    monkeypatch.setattr(module, "read_trajectories", read)
    assert [record["step"] for record in rollouts(result, TOKENIZER)] == [1, 4, 7]
    assert opened == [name(1), name(4), name(7)]


def test_a_step_is_shown_from_the_first_file_in_which_anything_was_graded(played: Played, episode: Any) -> None:
    files = {
        name(1): (1, [episode(0, "1+2:", 0.0, (">3",), graded=False)]),
        name(1, rank=1): (1, [episode(1, "1+3:", 1.0, (">4",))]),
        name(1, number=1): (1, [episode(2, "1+4:", 1.0, (">5",))]),
    }
    assert [record["id"] for record in rollouts(played(files), TOKENIZER)] == ["row-1"]


def test_an_empty_completion_has_no_parts(played: Played, episode: Any) -> None:
    (record,) = rollouts(played({name(1): (1, [episode(0, "1+2:", 0.0, (), finished=False)])}), TOKENIZER)
    assert record["samples"][0]["parts"] == [] and record["samples"][0]["tokens"] == 0
