"""The stage on an environment of several turns: what is stored, learned from and resumed, and the table's builder."""

import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints.commit import commit
from checkpoints.manifest import commit_manifest
from data.job import Job
from data.metrics import read_metrics
from data.rows import SCHEMA, row_id
from data.shards import write_shard
from data.tokenizer import character_tokenizer, decode
from data.trajectories import Trajectories, read_trajectories
from stages.environments.config import GuessConfig
from stages.environments.registry import make
from stages.rl.config import StageConfig
from stages.rl.rollouts import Rewarded, tabulate
from stages.rl.run import run
from stages.rollout import flight
from stages.rollout.engine import Completion
from stages.rollout.flight import Played, Start
from stages.trainer.config import ArchitectureConfig, ModelConfig
from stages.trainer.policy import load_policy

ALPHABET = "0123456789-: HIGERLOWNUMB?"
ENVIRONMENT = GuessConfig(turns=3, numbers=4)


@pytest.fixture(scope="module")
def game(world: Any) -> Any:
    """The world of the other tests, with a game of three turns and a model that has its letters."""
    environment = make(ENVIRONMENT)
    infos = [environment.reset(seed=seed)[1] for seed in range(12)]
    rows = [{**info, "id": row_id(info["prompt"]), "seed": seed, "source": "guess"} for seed, info in enumerate(infos)]
    synth, sft = world.attempt(), world.attempt()
    shard = synth / "train" / "0000.parquet"
    with commit(shard) as aside:
        write_shard(aside, pa.Table.from_pylist(rows, SCHEMA), {})
    commit_manifest(synth, [shard], {})
    shape = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32}
    architecture = ArchitectureConfig(**shape, max_positions=64, alphabet=ALPHABET)
    load_policy(ModelConfig(architecture=architecture), 3).model.save_pretrained(sft / "model")
    character_tokenizer(ALPHABET).save_pretrained(sft / "model")
    commit_manifest(sft, list((sft / "model").iterdir()), {})
    values = world.config.model_dump() | {"environment": ENVIRONMENT.model_dump()}
    values["rl"] |= {"steps": 2, "sampling": {"max_new_tokens": 30, "slots": 8}, "checkpoint": {"every_steps": 1}}
    return replace(world, config=StageConfig.model_validate(values), synth=synth, sft=sft)


@pytest.fixture(scope="module")
def played(game: Any) -> Path:
    folder = game.attempt()
    run(game.config, game.inputs, folder, Job())
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    paths = [folder / "model" / "model.safetensors", *sorted((folder / "trajectories").iterdir())]
    return {path.name: path.read_bytes() for path in paths}


def test_an_episode_is_stored_as_it_was_played_and_its_observations_are_masked(played: Path) -> None:
    table, _ = read_trajectories(played / "trajectories" / "step-000001-rank-0000.h5")
    tokenizer = character_tokenizer(ALPHABET)
    assert table.turns.max() > 1
    assert set(table.limits) == {64 - size for size in table.prompt_lengths}
    for index in np.flatnonzero(table.turns > 1):
        tokens, chosen = table.sequence(int(index))
        seen = tokens[~chosen][table.prompt_lengths[index] :]
        assert re.fullmatch(r"((HIGHER|LOWER|NUMBER\?) \d+-\d+:)+", decode(tokenizer, seen.tolist()))


def test_the_number_of_turns_is_a_metric_of_environments_that_have_several(played: Path, undisturbed: Path) -> None:
    table = read_metrics(played)
    files = sorted((played / "trajectories").iterdir())
    assert table["turns"].to_pylist() == [read_trajectories(path)[0].turns.mean() for path in files]
    assert "turns" not in read_metrics(undisturbed).column_names
    assert max(table["parity"].to_pylist()) < 1e-4


class Crash(BaseException):
    """Like a kill, but it leaves the process of the test alive."""


@pytest.mark.parametrize("count", [1, 9, 15])
def test_a_kill_between_two_turns_changes_nothing(
    game: Any, played: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    folder, real, calls = game.attempt(), flight.encode_observation, 0

    def crash(*arguments: Any) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == count:
            raise Crash
        return real(*arguments)

    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(flight, "encode_observation", crash)
        run(game.config, game.inputs, folder, Job())
    run(game.config, game.inputs, folder, Job())
    assert contents(folder) == contents(played)


KILL = """
import os, signal
from stages.rollout import flight

real, calls = flight.encode_observation, 0

def encode(*arguments):
    global calls
    calls += 1
    if calls == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

flight.encode_observation = encode
"""


def test_a_process_that_is_killed_between_two_turns_goes_on_with_the_same_bits(
    game: Any, start: Any, played: Path
) -> None:
    folder = game.attempt()
    (killed,) = start(game.config, folder, of=game, before=KILL)
    assert killed.wait() == -signal.SIGKILL and not list(folder.glob("trajectories/*-rank-0000.h5"))
    (again,) = start(game.config, folder, of=game)
    assert again.wait() == 0 and contents(folder) == contents(played)


def test_two_ranks_play_the_episodes_of_one(game: Any, start: Any, played: Path) -> None:
    folder = game.attempt()
    assert [process.wait() for process in start(game.config, folder, 2, of=game)] == [0, 0]
    whole = read_trajectories(played / "trajectories" / "step-000001-rank-0000.h5")[0]
    parts = [read_trajectories(folder / "trajectories" / f"step-000001-rank-000{rank}.h5")[0] for rank in (0, 1)]
    joined = Trajectories.joined(parts)
    both = joined.pick(np.argsort(joined.groups, kind="stable"))
    assert both.turns.max() > 1
    for name in ("tokens", "mask", "versions", "offsets", "groups", "seeds", "rewards", "terms", "finished", "limits"):
        assert np.array_equal(getattr(both, name), getattr(whole, name)), name
    np.testing.assert_allclose(both.logprobs, whole.logprobs, atol=1e-5)
    assert read_metrics(played)["turns"][0] == read_metrics(folder)["turns"][0]


IDS = st.lists(st.integers(3, 9), min_size=1, max_size=4)
TURNS = st.lists(st.tuples(IDS, st.lists(st.integers(3, 9), min_size=1, max_size=3)), min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(st.tuples(TURNS, st.booleans(), st.none() | st.floats(-2, 2, width=32)), max_size=5))
def test_the_table_has_every_token_in_its_place(
    drawn: list[tuple[list[tuple[list[int], list[int]]], bool, float | None]],
) -> None:
    """Each turn is (what was seen, what was said); the log-probability of a token tells its place."""
    samples, count = [], 0
    for number, (turns, finished, reward) in enumerate(drawn):
        start = Start({"id": f"row-{number}"}, turns[0][0], number)
        completions = []
        for _, said in turns:
            logprobs = -np.arange(count, count + len(said), dtype=np.float32) - 1
            completions.append(Completion(said, logprobs, np.full(len(said), number, np.int32), "stop"))
            count += len(said)
        played = Played(start, [seen for seen, _ in turns[1:]], completions, finished=finished)
        samples.append(Rewarded(number // 2, played, 9, [0.5, 1.5], reward))
    table = tabulate(samples, 2)
    assert table.logprobs[table.mask].tolist() == [-place - 1.0 for place in range(count)]
    assert not table.logprobs[~table.mask].any() and (table.versions[~table.mask] == -1).all()
    assert table.terms.shape == (len(drawn), 2) and len(table) == len(drawn)
    for index, (turns, finished, reward) in enumerate(drawn):
        tokens, chosen = table.sequence(index)
        assert tokens.tolist() == [token for seen, said in turns for token in (*seen, *said)]
        assert chosen.tolist() == [own for seen, said in turns for own in (*[False] * len(seen), *[True] * len(said))]
        assert set(table.versions[table.offsets[index] : table.offsets[index + 1]][chosen]) == {index}
        assert table.turns[index] == len(turns) and table.prompt_lengths[index] == len(turns[0][0])
        assert table.completion_lengths[index] == sum(len(said) for _, said in turns)
        assert (table.finished[index], table.graded[index]) == (finished, reward is not None)
        assert table.rewards[index] == (reward or 0.0) and table.prompt_ids[index] == f"row-{index}"
