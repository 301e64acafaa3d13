"""The stage in processes that are killed for real."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MAIN = """
import json, os, signal, sys, threading
from pathlib import Path
from checkpoints import commit
from data.job import Job, Stopped
from stages.synth.config import StageConfig
from stages.synth.run import run

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    config = StageConfig.model_validate(json.loads((folder / "attempt.json").read_text())["config"])
    job = Job(rank=int(sys.argv[2]), world_size=int(sys.argv[3]), stop=threading.Event())
    signal.signal(signal.SIGTERM, lambda *_: job.stop.set())
    name, left = (*sys.argv[4:], "", "0")[:2]
    sync = commit.sync

    def sync_or_die(path):
        global left
        left = int(left) - (path.name.startswith(name) and path.name.endswith(commit.ASIDE))
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(path)

    if name:
        commit.sync = sync_or_die
    try:
        run(config, {}, folder, job)
    except Stopped:
        sys.exit(75)
    assert "torch" not in sys.modules
"""


@pytest.fixture
def start(tmp_path):
    """`start(folder, rank, ranks, name, n)`: one rank, killed as it commits the n-th file with such a name."""
    script = tmp_path / "main.py"
    script.write_text(MAIN)

    def started(folder: Path, *arguments: object) -> subprocess.Popen:
        command = [sys.executable, str(script), str(folder), *map(str, arguments or (0, 1))]
        processes.append(subprocess.Popen(command, start_new_session=True))
        return processes[-1]

    processes: list[subprocess.Popen] = []
    yield started
    for process in processes:
        process.kill()
        process.wait()


def wait_for(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.002)


def group_members(group: int) -> list[int]:
    """Processes of a group that still run (a zombie does not)."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            members.append(int(path.parent.name))
    return members


@pytest.fixture
def pair(config):
    """One config with two workers, for processes that are killed, and the same with one, which starts none."""
    sizes = {"num_tasks": 2500, "block_tasks": 125, "shard_rows": 250}
    return config(**sizes, workers=2), config(**sizes, workers=1)


@pytest.mark.parametrize(("name", "count"), [("block", 1), ("block", 17), ("shard", 1), ("shard", 9), ("manifest", 1)])
def test_killed_at_any_moment_and_started_again_it_writes_the_same_bytes(
    pair, synth, shards, attempt, start, name, count
):
    folder = attempt("synth", pair[0].model_dump(mode="json"))
    process = start(folder, 0, 1, name, count)
    assert process.wait() == -signal.SIGKILL
    assert len(list(folder.rglob("*.writing"))) == 1 and not (folder / "manifest.json").exists()
    wait_for(lambda: not group_members(process.pid))  # the workers go too, though nobody told them
    synth(pair[1], folder=folder)
    assert shards(folder) == shards(synth(pair[1]))
    assert not (folder / "blocks").exists() and not list(folder.rglob("*.writing"))


def test_a_signal_to_the_whole_job_stops_it_between_two_blocks(config, synth, shards, attempt, start):
    many = {"num_tasks": 20_000, "block_tasks": 125, "shard_rows": 2000}
    pair = config(**many, workers=2), config(**many, workers=1)
    folder = attempt("synth", pair[0].model_dump(mode="json"))
    process = start(folder)
    wait_for(lambda: len(list(folder.glob("blocks/*.parquet"))) >= 2)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == 75
    wait_for(lambda: not group_members(process.pid))
    assert not list(folder.glob("blocks/*.writing"))
    synth(pair[1], folder=folder)
    assert shards(folder) == shards(synth(pair[1]))


def test_ranks_in_processes_of_their_own_write_the_same_bytes_though_one_is_killed(pair, synth, shards, attempt, start):
    folder = attempt("synth", pair[0].model_dump(mode="json"))
    first, second = start(folder, 0, 2), start(folder, 1, 2)
    wait_for(lambda: len(list(folder.glob("blocks/*.parquet"))) >= 4)
    second.kill()
    second.wait()
    again = start(folder, 1, 2)
    assert (first.wait(), again.wait()) == (0, 0)
    assert shards(folder) == shards(synth(pair[1]))
