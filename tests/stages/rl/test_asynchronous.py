"""Asynchronous mode from end to end, with real processes, which are killed at random moments."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from checkpoints.manifest import NAME, Result
from data.job import Job, Stopped
from data.metrics import read_metrics
from data.progress import read_progress
from data.trajectories import read_trajectories
from stages.rl.batch_log import read_batches
from stages.rl.replay import rebuild
from stages.rl.run import run
from stages.rl.state import State

Start = Callable[..., list[subprocess.Popen[bytes]]]
ACTOR = """
import sys
from pathlib import Path
from checkpoints.manifest import NAME, Result
from data.job import Job
from stages.rl.actor.run import run
from stages.rl.config import StageConfig

config, synth, sft, folder, name = sys.argv[1:]
inputs = {"synth": Result(Path(synth) / NAME), "sft": Result(Path(sft) / NAME)}
run(StageConfig.model_validate_json(config), inputs, Path(folder), Job(job_id=name))
"""
LIMIT = 300.0


@contextmanager
def actors(
    world: Any, config: Any, folder: Path, count: int, before: str = ""
) -> Generator[list[subprocess.Popen[bytes]]]:
    """So many actors, which run `before` first; they end with the block."""
    started = [actor(world, config, folder, f"a{number}", before) for number in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def actor(world: Any, config: Any, folder: Path, name: str, before: str = "") -> subprocess.Popen[bytes]:
    arguments = [config.model_dump_json(), str(world.synth), str(world.sft), str(folder), name]
    return subprocess.Popen(
        [sys.executable, "-c", before + ACTOR, *arguments], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


def state_after(folder: Path, step: int) -> State:
    """As the checkpoint has it."""
    saved = json.loads((folder / "checkpoints" / f"step-{step:06d}" / "state.json").read_text())
    return State.from_json(saved["state"]["caller"])


def assert_each_position_was_trained_once(folder: Path, steps: int, prompts: int) -> None:
    batches = read_batches(folder)
    assert batches["step"].to_pylist() == [step for step in range(1, steps + 1) for _ in range(prompts)]
    positions = batches["position"].to_pylist()
    assert len(set(positions)) == len(positions) == steps * prompts
    state = state_after(folder, steps)
    done = {*range(state.cursor), *state.ahead}
    assert set(positions) <= done and len(done) == len(positions) + state.positions_set_aside, "some were lost"
    # None was passed over: at most a window of later ones was ready before it, or what came first was too old.
    assert set(range(steps * prompts - 3 * prompts)) - done <= state.attempts.keys()
    for step in range(1, steps + 1):
        files = list((folder / "trajectories").glob(f"step-{step:06d}-rank-*.h5"))
        places = sorted({place for path in files for place in read_trajectories(path)[0].groups.tolist()})
        assert places == list(range(prompts))


@pytest.mark.slow
def test_a_run_trains_and_leaves_what_every_run_leaves(world: Any, start: Start) -> None:
    folder, config = world.attempt(), world.changed(mode="asynchronous", steps=6)
    with actors(world, config, folder, 1):
        (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 0
    assert_each_position_was_trained_once(folder, 6, 4)
    result, table = Result(folder / NAME), read_metrics(folder)
    assert result.paths("batches/") and result.paths("trajectories/") and result.paths("model/")
    assert table["parity"][0].as_py() < 1e-4
    assert max(table["staleness_max"].to_pylist()) <= config.rl.asynchronous.max_staleness
    wanted = {"staleness", "queue_depth", "waiting_share", "seconds_waiting", "seconds_communication", "actors"}
    assert wanted | {"episodes_per_second", "tokens_per_second", "actors_utilisation"} <= set(table.column_names)


@pytest.mark.slow
def test_two_learners_share_each_batch_and_its_log_has_what_each_of_them_knows(world: Any, start: Start) -> None:
    folder, config = world.attempt(), world.changed(mode="asynchronous", steps=4)
    with actors(world, config, folder, 1):
        assert [process.wait(LIMIT) for process in start(config, folder, 2)] == [0, 0]
    assert_each_position_was_trained_once(folder, 4, 4)
    batches = read_batches(folder)
    assert set(batches["rank"].to_pylist()) == set(batches["shard"].to_pylist()) == {0, 1}
    assert set(batches["member"].to_pylist()) == {"a0.0"} and all(batches["lease"].to_pylist())
    for step in range(1, 5):
        assert not [one.wrong for one in rebuild(folder, step, config.seed) if one.wrong]
    leases = batches["lease"].to_pylist()
    assert all(leases) and len(set(leases)) == len(leases)


@pytest.mark.slow
def test_nothing_of_the_journals_is_left_in_a_result_and_its_batches_are_rebuilt_without_them(
    world: Any, start: Start, capfd: Any
) -> None:
    folder, config = world.attempt(), world.changed(mode="asynchronous", steps=4)
    with actors(world, config, folder, 1):
        assert [process.wait(LIMIT) for process in start(config, folder)] == [0]
    assert "the last step is done; left over, and not trained: " in capfd.readouterr().out
    assert not list((folder / "trajectories").glob("groups-*"))
    for step in range(1, 5):
        assert not [one.wrong for one in rebuild(folder, step, config.seed) if one.wrong]


@pytest.mark.slow
def test_killed_just_before_its_result_is_published_the_next_start_publishes_it_without_actors(
    world: Any, start: Start
) -> None:
    folder, config = world.attempt(), world.changed(mode="asynchronous", steps=3)
    killed = "import os; import stages.rl.run as r; r.commit_manifest = lambda *_, **__: os._exit(9)\n"
    with actors(world, config, folder, 1):
        (learner,) = start(config, folder, before=killed)
        assert learner.wait(LIMIT) == 9
    assert not (folder / NAME).exists()
    (learner,) = start(config, folder)
    assert learner.wait(LIMIT) == 0
    assert_each_position_was_trained_once(folder, 3, 4)
    assert Result(folder / NAME).paths("trajectories/") and not list((folder / "trajectories").glob("groups-*"))


def victims(learner: subprocess.Popen[bytes], kind: str, played: list[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    if kind == "learner":
        return [psutil.Process(learner.pid)]
    if kind == "actor":
        return [psutil.Process(process.pid) for process in played if process.poll() is None]
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(learner.pid).children()
        return [child for child in children if f"stages.rl.{kind}" in " ".join(child.cmdline())]
    return []


KINDS = ("store", "coordinator", "weights", "actor", "learner")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_killed_part_by_part_at_random_moments_each_position_is_trained_once(
    world: Any, start: Start, seed: int
) -> None:
    """Field reports R1 and R3: what was played and not trained is neither lost nor trained twice."""
    steps, source = 60, random.Random(seed)
    folder, config = world.attempt(), world.changed(mode="asynchronous", steps=steps)
    kinds = [*KINDS, *KINDS]
    source.shuffle(kinds)
    names = iter(range(100))
    with actors(world, config, folder, 0) as played:
        played += [actor(world, config, folder, f"a{next(names)}") for _ in range(2)]
        (learner,) = start(config, folder)
        seen, deadline = 0, time.monotonic() + LIMIT
        for kind in kinds:
            wanted = seen + source.randint(1, 4)
            while seen < wanted and learner.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
                seen = max(seen, int((read_progress(folder) or {"done": 0})["done"]))
            time.sleep(source.uniform(0, 0.1))
            for process in victims(learner, kind, played)[:1]:
                process.kill()
            if kind == "actor":
                played.append(actor(world, config, folder, f"a{next(names)}"))
            if kind == "learner":
                learner.wait()
                (learner,) = start(config, folder)
        assert learner.wait(LIMIT) == 0
    assert_each_position_was_trained_once(folder, steps, 4)


@pytest.mark.slow
def test_without_actors_the_learners_wait_and_say_so_and_go_on_when_one_comes(
    world: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = world.attempt(), world.changed(mode="asynchronous", steps=2)
    (learner,) = start(config, folder, before="import stages.rl.news as n; n.QUIET_SECONDS = 0.5\n")
    deadline = time.monotonic() + LIMIT
    while "no actor is there" not in str((read_progress(folder) or {}).get("message")):
        assert learner.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    with actors(world, config, folder, 1):
        assert learner.wait(LIMIT) == 0


def test_asked_to_stop_while_it_waits_it_does(world: Any) -> None:
    job = Job()
    job.stop.set()
    with pytest.raises(Stopped, match="committed step 0 of 4"):
        run(world.changed(mode="asynchronous"), world.inputs, world.attempt(), job)


def test_a_child_that_ends_again_and_again_ends_the_run_with_its_last_words(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.rl.children.PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("stages.rl.services.begin_shard", _broken_shard)
    with pytest.raises(RuntimeError, match="(?s)its shard has ended with 1, 6 times .* its log.*No module named"):
        run(world.changed(mode="asynchronous"), world.inputs, world.attempt(), Job())


def _broken_shard(children: Any, *_: Any) -> None:
    children.begin("shard", "stages.rl.no_such_module", [])
