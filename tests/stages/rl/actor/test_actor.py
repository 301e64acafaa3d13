"""Actors as processes of their own, beside a real learner: what ends a run, and how an actor leaves."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints.manifest import NAME, Result, commit_manifest
from data.metrics import metric_shards, read_metrics
from data.trajectories import read_trajectories
from stages.rl.batch_log import read_batches
from stages.rl.coordinator.table import Table, read_table

Start = Callable[..., list[subprocess.Popen[bytes]]]
ACTOR = """
import os, signal, sys
from pathlib import Path
from checkpoints.manifest import NAME, Result
from data.job import Job
from stages.rl.actor.run import run
from stages.rl.config import StageConfig

config, synth, sft, folder, name, role = sys.argv[1:]
inputs = {"synth": Result(Path(synth) / NAME), "sft": Result(Path(sft) / NAME)}
job = Job(job_id=name)
signal.signal(signal.SIGTERM, lambda *_: job.stop.set())
run(StageConfig.model_validate_json(config), inputs, Path(folder), job, role)
os._exit(0)
"""
BROKEN_ENGINE = """
from stages.rollout.torch.engine import TorchEngine
right = TorchEngine.update
def update(self, weights, version):
    right(self, ((name, tensor * 1.5) for name, tensor in weights), version)
TorchEngine.update = update
"""
LIMIT = 300.0


@contextmanager
def processes() -> Generator[list[subprocess.Popen[bytes]]]:
    """They end with the block."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def actor(
    world: Any, config: Any, folder: Path, name: str = "a", role: str = "actor", before: str = ""
) -> subprocess.Popen[bytes]:
    arguments = [config.model_dump_json(), str(world.synth), str(world.sft), str(folder), name, role]
    return subprocess.Popen(
        [sys.executable, "-c", before + ACTOR, *arguments], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


def wait_for(what: Callable[[], object], seconds: float = LIMIT) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def table(folder: Path) -> Table:
    return read_table(folder)


@pytest.mark.slow
def test_an_engine_that_does_not_say_what_the_policy_says_ends_the_run(
    world: Any, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, config = world.attempt(), world.changed(mode="asynchronous", steps=1000)
    with processes() as all_of_them:
        all_of_them += start(config, folder)
        all_of_them.append(actor(world, config, folder, before=BROKEN_ENGINE))
        assert all_of_them[1].wait(LIMIT) and all_of_them[0].wait(LIMIT)
    assert "engine and the learner's policy disagree by" in capfd.readouterr().err
    (gone,) = table(folder).gone
    assert gone.trouble.startswith("ParityError: ") and gone.why == gone.trouble


@pytest.mark.slow
def test_a_reward_that_is_no_number_ends_the_run_and_names_the_row(
    world: Any, start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text("def nothing(episode):\n    return float('nan')\n")
    folder = world.attempt()
    config = world.changed(mode="asynchronous", rewards=[{"term": f"{tmp_path}/own.py:nothing"}])
    with processes() as all_of_them:
        all_of_them += start(config, folder)
        all_of_them.append(actor(world, config, folder))
        assert all_of_them[0].wait(LIMIT)
    said = capfd.readouterr().err
    assert "(told by actor a.0)" in said and "sample" in said and "must be a finite number" in said


@pytest.mark.slow
@pytest.mark.parametrize("room", [1, 2**30], ids=["full", "roomy"])
def test_told_to_go_an_actor_hands_all_back_and_is_gone_within_seconds(world: Any, start: Start, room: int) -> None:
    folder = world.attempt()
    settings = {"max_staleness": 8, "store_bytes": room}
    config = world.changed(mode="asynchronous", steps=100000, asynchronous=settings)
    with processes() as all_of_them:
        all_of_them += start(config, folder)
        going = actor(world, config, folder, "a")
        all_of_them += [going, actor(world, config, folder, "b")]
        wait_for(lambda: table(folder).members and min(one.version for one in table(folder).members) > 1)
        wait_for(lambda: len(table(folder).members) == 2)
        if room == 1:
            os.kill(all_of_them[0].pid, signal.SIGSTOP)  # nothing is taken from the shard, which gets full
            wait_for(lambda: all(one.in_flight == 0 for one in table(folder).members))
        began = time.monotonic()
        going.send_signal(signal.SIGTERM)
        assert going.wait(LIMIT) == 0
        assert time.monotonic() - began < 20  # 4.5 s by its own limits; its lease would last 30 s
        os.kill(all_of_them[0].pid, signal.SIGCONT)
        wait_for(lambda: table(folder).gone)
        (gone,) = table(folder).gone
        assert gone.name == "a.0" and gone.why == "told to stop"
        version = table(folder).members[0].version
        wait_for(lambda: table(folder).members[0].version > version + 5)  # what it has handed back was no loss
        assert not table(folder).losses and not table(folder).set_aside


@pytest.mark.slow
def test_two_actors_go_on_with_what_the_other_has_begun_and_with_newer_weights(world: Any, start: Start) -> None:
    steps, folder = 12, world.attempt()
    config = world.changed(mode="asynchronous", steps=steps, asynchronous={"partial_tokens": 3, "max_staleness": 4})
    with processes() as all_of_them:
        all_of_them += [actor(world, config, folder, name) for name in "ab"]
        (learner,) = start(config, folder)
        all_of_them.append(learner)
        assert learner.wait(2 * LIMIT) == 0
    positions = read_batches(folder)["position"].to_pylist()
    assert len(set(positions)) == len(positions) == 4 * steps
    several = 0
    for path in (folder / "trajectories").glob("step-*.h5"):
        found = read_trajectories(path)[0]
        for index in range(len(found)):
            part = slice(int(found.offsets[index]), int(found.offsets[index + 1]))
            versions = found.versions[part][found.mask[part]]
            assert (np.diff(versions) >= 0).all()
            several += len(set(versions.tolist())) > 1
    assert several


@pytest.mark.slow
def test_the_evaluator_scores_versions_on_the_validation_split(world: Any, start: Start, tmp_path: Path) -> None:
    synth = tmp_path / world.synth.name
    shutil.copytree(world.synth, synth)
    (synth / "validation").mkdir()
    shard = shutil.copy(synth / "train" / "0000.parquet", synth / "validation" / "0000.parquet")
    (synth / NAME).unlink()
    commit_manifest(synth, [synth / "train" / "0000.parquet", Path(shard)], {})
    its = replace(world, synth=synth)
    folder = world.attempt()
    settings = {"evaluate_every": 2, "evaluate_prompts": 6}
    config = world.changed(mode="asynchronous", steps=100000, asynchronous=settings)
    with processes() as all_of_them:
        all_of_them += start(config, folder, of=its)
        all_of_them += [actor(its, config, folder), actor(its, config, folder, "e", "evaluator")]
        wait_for(lambda: len(table(folder).scores) > 1)
        first, second = table(folder).scores[:2]
        wait_for(lambda: set(scored(folder).values()) & {one.version for one in table(folder).scores})
    assert first.prompts == second.prompts == 6 and second.version >= first.version + 2
    assert 0 <= first.success <= 1
    # With each step is the last score that there was, and of which version it is.
    assert all(version <= step for step, version in scored(folder).items())


def scored(folder: Path) -> dict[int, int]:
    """By committed step, the version that was scored last."""
    rows = read_metrics(folder).to_pylist() if metric_shards(folder) else []
    return {row["step"]: int(row["evaluator_version"]) for row in rows if row.get("evaluator_version") is not None}


def test_without_a_validation_split_the_evaluator_says_what_to_set(world: Any) -> None:
    from stages.rl.actor.evaluator import held_out

    with pytest.raises(ValueError, match="evaluate_every: .* set synth.validation_share above 0"):
        held_out(Result(world.synth / NAME), 3)
