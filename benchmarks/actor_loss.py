"""Seconds from kill -9 of an actor until all prompts that it had were played by others, against the length of a lease.

A whole run as a person without a cluster starts it. Of its local actors one after another is killed at a random moment,
and `qianka actors add 1` brings another. The learner may lose no step meanwhile, and no position may be trained twice
or be missing.
"""

import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.commands import QIANKA, execute, figure, write_config
from data.progress import read_progress
from slurm.actors import processes
from slurm.record import read_record
from stages.rl.batch_log import read_batches
from stages.rl.coordinator.table import read_table
from stages.rl.positions import positions as positions_of
from stages.rl.store.client import ShardClient

ACTORS, KILLS, LEASE_SECONDS = 2, 4, 10.0
SETTLED_SECONDS = 2.5
"""What a dead actor had put or asked for is known by then: tables and inventories are a second old at most."""
LIMIT_SECONDS = 120.0
SETTINGS = (
    *("rl.mode=asynchronous", "rl.steps=100000", "rl.samples_per_prompt=16"),
    f"rl.asynchronous.lease_seconds={LEASE_SECONDS}",
)


def measure() -> dict[str, str | float]:
    """The slowest of several kills."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_config(folder, "slurm: {executor: local}")
        for stage in ("synth", "sft"):
            execute([*QIANKA, "stage", stage, "tiny.yaml", "--cores", "1"], folder)
        with _learning(folder) as attempt:
            source = random.Random(1)
            losses = [_lose_one(folder, attempt, source) for _ in range(KILLS)]
            steps = _done(attempt)
        _check(attempt, steps)
    print(f"prompts of each actor, and seconds until they were played: {losses}; {steps} steps")
    assert any(count for count, _ in losses), "somebody had prompts"
    return figure("actor_loss", max(seconds for _, seconds in losses), LEASE_SECONDS)


@contextmanager
def _learning(folder: Path) -> Generator[Path]:
    """The attempt of an rl stage whose first steps are done; it is cancelled at the end, so it commits the last."""
    command = [*QIANKA, "stage", "rl", "tiny.yaml", *SETTINGS, "--cores", "2"]
    with (folder / "said.log").open("wb") as said:
        waiting = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=os.environ | {"COLUMNS": "200"})
    try:
        stage = folder / "runs/tiny/rl"
        _wait(lambda: stage.is_dir() and (found := read_record(stage)) and _done(stage / found.attempt) >= 3)
        record = read_record(stage)
        assert record
        yield stage.resolve() / record.attempt
    except BaseException:
        print((folder / "said.log").read_text()[-2000:])
        raise
    finally:
        execute([*QIANKA, "cancel"], folder)
        waiting.wait()


def _playing(attempt: Path) -> list[psutil.Process]:
    """Actors that live and have weights, as far as the coordinator knows."""
    jobs = {member.job for member in read_table(attempt).members if member.version >= 0}
    return [process for process in processes.processes(attempt) if str(process.pid) in jobs]


def _lose_one(folder: Path, attempt: Path, source: random.Random) -> tuple[int, float]:
    """Kill one of the actors, and bring another. How many prompts it had, and seconds until the store had got them."""
    _wait(lambda: len(_playing(attempt)) == ACTORS)
    time.sleep(source.uniform(0, 2))
    victim = source.choice(_playing(attempt))
    steps, killed, killed_at = _done(attempt), time.monotonic(), time.time()
    victim.kill()
    execute([*QIANKA, "actors", "add", "1"], folder)
    _wait(lambda: read_table(attempt).written > killed_at + SETTLED_SECONDS)
    (lost,) = (member.held for member in read_table(attempt).members if member.job == str(victim.pid))
    store, waiting = ShardClient(attempt / "endpoints/shard-0000.json"), set(lost)

    def played() -> bool:
        waiting.difference_update(one.position for one in store.inventory().shelved if one.state != "partial")
        return not waiting

    _wait(played)
    seconds = time.monotonic() - killed if lost else 0.0
    assert _done(attempt) > steps, "the learner goes on meanwhile"
    return len(lost), round(seconds, 2)


def _check(attempt: Path, steps: int) -> None:
    """Each step is there once, each position was trained once, and none is missing."""
    batches = read_batches(attempt)
    newest = max((attempt / "checkpoints").glob("step-*"))
    state = json.loads((newest / "state.json").read_text())["state"]["caller"]
    positions, found = batches["position"].to_pylist(), batches["step"].unique().to_pylist()
    assert found == list(range(1, len(found) + 1)) and len(found) >= steps, "no step is lost"
    assert len(set(positions)) == len(positions), "no position is trained twice"
    assert set(positions) == {*range(state["cursor"]), *positions_of(state["ahead"])}, "none is missing"


def _done(attempt: Path) -> int:
    return int((read_progress(attempt) or {"done": 0})["done"])


def _wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it has not come true"
        time.sleep(0.02)


if __name__ == "__main__":
    print(measure())
