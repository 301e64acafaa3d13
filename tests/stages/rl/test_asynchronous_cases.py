"""Asynchronous mode where something is out of the ordinary: real learners, shards, coordinators and actors."""

import importlib.util
import json
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.metrics import read_metrics
from data.progress import read_progress
from data.shards import read_split
from stages.rl.batch_log import read_batches
from stages.rl.prompts import row_at

spec = importlib.util.spec_from_file_location("playing", Path(__file__).with_name("test_asynchronous.py"))
assert spec and spec.loader
playing: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(playing)

pytestmark = pytest.mark.slow
Start = Callable[..., list[subprocess.Popen[bytes]]]
LIMIT = playing.LIMIT
GROUPS = """
from dataclasses import replace
import numpy as np
from stages.rl.actor.group import Group
real = Group.table
def table(self, judge):
    found = real(self, judge)
    return found if found is None or not ({when}) else replace(found, {what})
Group.table = table
"""
"""An actor whose groups are changed before they are put."""
WRONG = "logprobs=np.where(found.mask, found.logprobs - 0.5, 0).astype(np.float32)"
UNGRADED = "graded=np.zeros_like(found.graded), rewards=np.zeros_like(found.rewards), terms=found.terms * np.nan"
KILLED_IN_SAVE = """
import os
from stages.trainer.learner import Learner
real = Learner.save
def save(self, path, step, state):
    if step == 4 and {early}:
        os.kill(os.getpid(), 9)
    real(self, path, step, state)
    if step == 4:
        os.kill(os.getpid(), 9)
Learner.save = save
"""
FAILS = """
from stages.rl.actor.playing import Playing
real = Playing._add
def add(self, lease, half):
    if {when}:
        raise ValueError("this prompt cannot be played")
    real(self, lease, half)
Playing._add = add
"""
BROKEN_ENGINE = """
from stages.rl.actor import loop
real = loop.check_probe
def check(engine, probe, sampling):
    return real(engine, probe.model_copy(update={"logprobs": [[p - 1 for p in ps] for ps in probe.logprobs]}), sampling)
loop.check_probe = check
"""


def settings(world: Any, steps: int, asynchronous: dict[str, Any] | None = None, **rl: Any) -> Any:
    return world.changed(mode="asynchronous", steps=steps, asynchronous=asynchronous or {}, **rl)


def until_step(folder: Path, step: int, processes: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + LIMIT
    while int((read_progress(folder) or {"done": 0})["done"]) < step:
        assert all(process.poll() is None for process in processes) and time.monotonic() < deadline
        time.sleep(0.02)


def assert_trained(folder: Path, steps: int) -> None:
    playing.assert_each_position_was_trained_once(folder, steps, 4)


def test_each_prompt_of_an_epoch_is_trained_once_over_the_end_of_an_epoch(world: Any, start: Start) -> None:
    folder, config = world.attempt(), settings(world, 14)
    with playing.actors(world, config, folder, 1):
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 0
    assert_trained(folder, 14)
    ids, batches = read_split(world.synth, "train")["id"].to_pylist(), read_batches(folder)
    trained = dict(zip(batches["position"].to_pylist(), batches["prompt_id"].to_pylist(), strict=True))
    assert all(ids[row_at(config.seed, position, len(ids))] == prompt for position, prompt in trained.items())
    epochs = [[trained[epoch * len(ids) + place] for place in range(len(ids))] for epoch in range(1)]
    assert all(sorted(epoch) == sorted(ids) for epoch in epochs)
    assert max(trained) >= 2 * len(ids)


def test_dynamic_sampling_plays_on_until_the_batch_is_full_whatever_the_window(world: Any, start: Start) -> None:
    """Window: 2 batches; rounds: 3."""
    folder, config = world.attempt(), settings(world, 5, {"max_staleness": 1}, algorithm="dapo")
    with playing.actors(world, config, folder, 1):
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 0
    table, batches = read_metrics(folder), read_batches(folder)
    assert max(table["rounds"].to_pylist()) > 1 and min(table["groups_kept"].to_pylist()) < 1
    assert len(set(batches["position"].to_pylist())) == len(batches)
    assert batches["step"].unique().to_pylist() == [1, 2, 3, 4, 5]


def test_an_algorithm_with_a_critic_learns_from_actors(world: Any, start: Start) -> None:
    folder, config = world.attempt(), settings(world, 3, algorithm="ppo")
    with playing.actors(world, config, folder, 1):
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 0
    assert_trained(folder, 3)
    assert len(read_metrics(folder)["value_loss"]) == 3


def test_all_of_it_works_encrypted(world: Any, start: Start) -> None:
    folder, config = world.attempt(), settings(world, 3, {"tls": True})
    with playing.actors(world, config, folder, 1):
        (learner,) = start(config, folder)
        until_step(folder, 1, [learner])
        names = ("coordinator", "shard-0000", "weights")  # candidates of the election have a password of their own
        announced = [folder / "endpoints" / f"{name}.json" for name in names]
        assert all("BEGIN CERTIFICATE" in path.read_text() for path in announced)
        assert learner.wait(LIMIT) == 0
    assert_trained(folder, 3)


def test_two_runs_at_once_on_one_node_meet_in_no_port_and_each_is_open_once_it_is_announced(
    world: Any, start: Start
) -> None:
    """Field report H1: ports are bound first, then announced, and never fixed."""
    folders, config, ports = [world.attempt(), world.attempt()], settings(world, 2), list[int]()
    learners = [start(config, folder)[0] for folder in folders]
    for folder in folders:
        for name in ("coordinator", "shard-0000", "weights"):
            announced, deadline = folder / "endpoints" / f"{name}.json", time.monotonic() + LIMIT
            while not announced.exists():
                assert time.monotonic() < deadline and all(learner.poll() is None for learner in learners)
                time.sleep(0.01)
            ports.append(json.loads(announced.read_text())["port"])
            socket.create_connection(("127.0.0.1", ports[-1]), LIMIT).close()
    assert len(set(ports)) == 6 and not {0, 29500} & set(ports)
    with playing.actors(world, config, folders[0], 1), playing.actors(world, config, folders[1], 1):
        assert [learner.wait(LIMIT) for learner in learners] == [0, 0]
    for folder in folders:
        assert_trained(folder, 2)


def test_killed_and_gone_on_with_on_another_number_of_ranks_each_position_is_trained_once(
    world: Any, start: Start
) -> None:
    """Field report R5: 1 rank, then 2, then 1."""
    folder, config = world.attempt(), settings(world, 40)
    with playing.actors(world, config, folder, 1):
        for world_size, step in ((1, 5), (2, 12)):
            learners = start(config, folder, world_size)
            until_step(folder, step, learners)
            for learner in learners:
                learner.kill()
            for learner in learners:
                learner.wait()
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 0
    assert_trained(folder, 40)
    assert set(read_batches(folder)["rank"].to_pylist()) == {0, 1}


@pytest.mark.parametrize("early", [True, False])
def test_killed_before_and_after_the_checkpoint_before_anybody_is_told_of_it(
    early: bool, world: Any, start: Start
) -> None:
    """Field report R2: all go by one newest step, which is the committed one."""
    folder, config = world.attempt(), settings(world, 6)
    with playing.actors(world, config, folder, 1):
        (learner,) = start(config, folder, before=KILLED_IN_SAVE.format(early=early))
        assert learner.wait(LIMIT) == -9
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 0
    assert_trained(folder, 6)


def test_a_prompt_that_always_fails_is_set_aside_and_counted_and_the_run_goes_on(world: Any, start: Start) -> None:
    """Field report R4."""
    folder, config = world.attempt(), settings(world, 5, {"max_attempts": 2})
    with playing.actors(world, config, folder, 1, FAILS.format(when="lease.position == 5")):
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 0
    positions = read_batches(folder)["position"].to_pylist()
    assert 5 not in positions and len(set(positions)) == 20
    assert read_metrics(folder)["positions_set_aside"].to_pylist()[-1] == 1


def test_when_no_prompt_can_be_played_the_run_ends_and_says_why(world: Any, start: Start, capfd: Any) -> None:
    """The other half of R4: the fault is no prompt's."""
    folder, config = world.attempt(), settings(world, 5, {"max_attempts": 2})
    with playing.actors(world, config, folder, 1, FAILS.format(when="True")):
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) != 0
    said = "".join(capfd.readouterr())
    assert "prompts in a row could not be played" in said and "this prompt cannot be played" in said


def test_a_first_batch_that_is_not_the_policys_is_thrown_away_and_played_anew(world: Any, start: Start) -> None:
    folder, config = world.attempt(), settings(world, 8)  # enough for the positions that are played again
    wrong = GROUPS.format(when="self.lease.position < 4 and self.lease.attempt == 0", what=WRONG)
    with playing.actors(world, config, folder, 1, wrong):
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 0
    batches = read_batches(folder)
    attempts = dict(zip(batches["position"].to_pylist(), batches["attempt"].to_pylist(), strict=True))
    assert {attempts[position] for position in range(4) if position in attempts} == {1}
    assert read_metrics(folder)["parity"][0].as_py() < 1e-4


@pytest.mark.parametrize(
    ("what", "words"),
    [(WRONG, "ParityError: rollout engine and policy disagree by 5.0e-01 nats"), (UNGRADED, "the grader failed on 16")],
)
def test_what_is_wrong_with_all_that_actors_play_ends_the_run_and_is_gone_once_it_is_mended(
    what: str, words: str, world: Any, start: Start, capfd: Any
) -> None:
    folder, config = world.attempt(), settings(world, 3)
    with playing.actors(world, config, folder, 1, GROUPS.format(when="True", what=what)):
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 1
    assert words in capfd.readouterr().err
    with playing.actors(world, config, folder, 1):
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 0
    assert_trained(folder, 3)


def test_an_actor_whose_engine_is_not_the_policys_ends_the_run_which_goes_on_once_it_is_mended(
    world: Any, start: Start, capfd: Any
) -> None:
    folder, config = world.attempt(), settings(world, 3)
    with playing.actors(world, config, folder, 1, BROKEN_ENGINE):
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 1
    assert "ParityError: this actor's engine and the learner's policy disagree by 1.0e+00" in capfd.readouterr().err
    assert not (folder / "batches").exists()
    with playing.actors(world, config, folder, 1):
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 0
    assert_trained(folder, 3)
