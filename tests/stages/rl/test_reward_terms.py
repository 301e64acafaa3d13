"""The reward of a step: a weighted sum of terms, stored, reported, and refused where it is no number."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints.manifest import NAME, Result
from data.job import Job
from data.metrics import read_metrics
from data.tokenizer import character_tokenizer, decode
from data.trajectories import Trajectories, read_trajectories
from stages.environments.rows import Rows
from stages.rl.run import run

OWN = """
import math, os, time
from stages.environments.rewards import Episode


def zeros(episode: Episode, *, worth: float = 0.5) -> float:
    return worth * episode.completion.count("0")


def fragile(episode: Episode) -> float:
    return 1 / (1 - episode.completion.startswith("0"))


def broken(episode: Episode) -> float:
    return {}["nothing"]


def endless(episode: Episode) -> float:
    return math.inf if "0" in episode.completion else 0.0


def undefined(episode: Episode) -> float:
    return math.nan if "0" in episode.completion else 0.0


def large(episode: Episode) -> float:
    return 1e39


def crashing(episode: Episode) -> float:
    return os.abort() if episode.completion.startswith("0") else 1.0


def slow(episode: Episode, *, log: str) -> float:
    began = time.time()
    time.sleep(0.1)
    with open(log, "a") as file:
        file.write(f"{began} {time.time()}\\n")
    return episode.completion.count("0")
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "my_rewards.py"
    path.write_text(OWN)
    return str(path)


def play(world: Any, *rewards: dict[str, Any], steps: int = 1) -> Path:
    folder = world.attempt()
    run(world.changed(rewards=rewards, steps=steps), world.inputs, folder, Job())
    return folder


def read(folder: Path) -> tuple[Trajectories, dict[str, Any]]:
    return read_trajectories(folder / "trajectories" / "step-000001-rank-0000.h5")


def texts(table: Trajectories) -> list[str]:
    tokenizer = character_tokenizer("01:; ")
    return [decode(tokenizer, tokens[chosen].tolist()) for tokens, chosen in map(table.sequence, range(len(table)))]


def test_the_reward_is_the_weighted_sum_of_its_terms_which_are_stored_before_their_weights(
    world: Any, own: str
) -> None:
    folder = play(
        world,
        {"term": "verifier", "weight": 2.0},
        {"term": "length_penalty", "weight": 0.125},
        {"term": f"{own}:zeros", "values": {"worth": 0.25}},
    )
    table, attributes = read(folder)
    assert attributes["terms"] == "verifier,length_penalty,zeros"
    np.testing.assert_allclose(table.terms[:, 1], -table.completion_lengths / table.limits, rtol=1e-6)
    assert table.terms[:, 2].tolist() == [0.25 * text.count("0") for text in texts(table)]
    assert set(table.terms[:, 0]) == {0, 1}
    np.testing.assert_allclose(table.rewards, table.terms @ np.float32([2, 0.125, 1]), rtol=1e-6)


def test_mean_spread_and_failures_of_each_term_are_metrics(world: Any) -> None:
    folder = play(world, {"term": "verifier"}, {"term": "length_penalty", "weight": 0.01}, {"term": "finished"})
    table, metrics = read(folder)[0], read_metrics(folder).to_pylist()[0]
    for column, name in enumerate(("verifier", "length_penalty", "finished")):
        assert metrics[f"reward/{name}_mean"] == pytest.approx(table.terms[:, column].mean(), abs=1e-6)
        assert metrics[f"reward/{name}_std"] == pytest.approx(table.terms[:, column].std(), abs=1e-5)
        assert metrics[f"reward/{name}_failed"] == 0
    assert metrics["success"] == metrics["reward/verifier_mean"] != metrics["reward"]


def test_the_verifier_alone_is_the_default_and_a_cut_completion_earns_nothing(world: Any, undisturbed: Path) -> None:
    table, attributes = read(undisturbed)
    assert attributes["terms"] == "verifier"
    assert table.terms[:, 0].tolist() == table.rewards.tolist() and not table.rewards[~table.finished].any()


def test_a_sample_of_which_a_term_failed_is_left_out_and_counted(
    world: Any, own: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = play(world, {"term": "verifier"}, {"term": f"{own}:fragile"})
    table, metrics = read(folder)[0], read_metrics(folder).to_pylist()[0]
    failed = np.array([text.startswith("0") for text in texts(table)])
    assert 0 < failed.sum() < 8
    assert np.isnan(table.terms[:, 1]).tolist() == failed.tolist() == (~table.graded).tolist()
    assert not np.isnan(table.terms[:, 0]).any() and not table.rewards[failed].any()
    assert metrics["reward/fragile_failed"] == failed.mean() and metrics["reward/verifier_failed"] == 0
    assert metrics["reward/fragile_mean"] == 1 and metrics["grader_failures"] == failed.sum()
    assert f"row {table.prompt_ids[np.flatnonzero(failed)[0]]}, sample" in caplog.text
    assert "the reward term fragile failed: ZeroDivisionError" in caplog.text


def test_a_term_that_crashes_leaves_out_its_sample_and_not_the_job(
    world: Any, own: str, caplog: pytest.LogCaptureFixture
) -> None:
    table, _ = read(play(world, {"term": "verifier"}, {"term": f"{own}:crashing"}))
    failed = np.array([text.startswith("0") for text in texts(table)])
    assert 0 < failed.sum() < 8 and (~table.graded).tolist() == failed.tolist()
    assert "the reward term crashing failed: its process crashed" in caplog.text


def test_slow_terms_are_computed_side_by_side_and_their_order_changes_nothing(
    world: Any, own: str, tmp_path: Path
) -> None:
    rewards = {"term": "verifier"}, {"term": f"{own}:slow", "values": {"log": str(tmp_path / "log")}}
    once, again = (play(world, *rewards) for _ in range(2))
    spans = [tuple(map(float, line.split())) for line in (tmp_path / "log").read_text().splitlines()]
    assert len(spans) == 32
    assert max(sum(one[0] < other[1] and other[0] < one[1] for other in spans) for one in spans) > 2
    table = read(once)[0]
    assert table.terms[:, 1].tolist() == [text.count("0") for text in texts(table)]
    name = "trajectories/step-000001-rank-0000.h5"
    assert (once / name).read_bytes() == (again / name).read_bytes()


def test_a_term_that_always_fails_ends_the_run_and_is_named(world: Any, own: str) -> None:
    with pytest.raises(RuntimeError, match="failed on 16 of the 16 samples .* the term broken, for example of row"):
        play(world, {"term": "verifier"}, {"term": f"{own}:broken"})


@pytest.mark.parametrize(
    ("reward", "what"),
    [
        ({"term": "undefined"}, "the reward term undefined is nan"),
        ({"term": "endless"}, "the reward term endless is inf"),
        ({"term": "large"}, r"the reward term large is 1e\+39"),
        ({"term": "zeros", "weight": 1e300, "values": {"worth": 1e300}}, "the reward term zeros is"),
        ({"term": "zeros", "weight": 1e38, "values": {"worth": 100.0}}, "the weighted sum of the reward terms is"),
    ],
)
def test_what_is_no_finite_number_names_the_sample(world: Any, own: str, reward: dict[str, Any], what: str) -> None:
    named = r"row [0-9a-f]{32}, sample \d, seed \d+: "
    with pytest.raises(ValueError, match=f"{named}{what}.*must be a finite number"):
        play(world, {**reward, "term": f"{own}:{reward['term']}"})


def test_a_reward_of_the_environment_that_is_no_number_names_the_sample(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rows, "grade", lambda self, task, completion: (float("nan"), True))
    monkeypatch.setattr("stages.rl.parts.self_test", lambda *arguments: None)
    with pytest.raises(ValueError, match=r"row .*, sample \d, seed \d+: the reward term verifier is nan"):
        run(world.changed(steps=1), world.inputs, world.attempt(), Job())


def test_the_grader_and_the_terms_see_the_whole_completion(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field report E3: an answer at the very start counts, however long the completion."""
    heard: list[str] = []
    monkeypatch.setattr(Rows, "grade", lambda self, task, text: (float(heard.append(text) is None), True))
    monkeypatch.setattr("stages.rl.parts.self_test", lambda *arguments: None)
    folder = world.attempt()
    run(world.changed(steps=1, sampling={"max_new_tokens": 24, "slots": 8}), world.inputs, folder, Job())
    table = read(folder)[0]
    ended = [text for text, finished in zip(texts(table), table.finished, strict=True) if finished]
    assert sorted(heard) == sorted(ended) and max(len(text) for text in heard) > 12


def test_the_manifest_has_the_whole_reward(world: Any) -> None:
    folder = play(world, {"term": "verifier"}, {"term": "finished", "weight": 0.5})
    assert Result(folder / NAME).manifest.metrics["reward_first"] == pytest.approx(
        float(read(folder)[0].rewards.mean())
    )
