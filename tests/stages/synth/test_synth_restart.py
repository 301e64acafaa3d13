"""The stage in processes that are killed for real."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MAIN = """
import json, signal, sys, threading
from pathlib import Path
from data.job import Job, Stopped
from stages.synth.config import StageConfig
from stages.synth.run import run

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    config = StageConfig.model_validate(json.loads((folder / "attempt.json").read_text())["config"])
    job = Job(rank=int(sys.argv[2]), world_size=int(sys.argv[3]), stop=threading.Event())
    signal.signal(signal.SIGTERM, lambda *_: job.stop.set())
    try:
        run(config, {}, folder, job)
    except Stopped:
        sys.exit(75)
    assert "torch" not in sys.modules
"""


@pytest.fixture
def start(tmp_path):
    """`start(folder, rank, ranks)` runs one rank in a process group of its own."""
    script = tmp_path / "main.py"
    script.write_text(MAIN)

    def started(folder: Path, rank: int = 0, ranks: int = 1) -> subprocess.Popen:
        command = [sys.executable, str(script), str(folder), str(rank), str(ranks)]
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
def large(config):
    return config(num_tasks=6000, block_tasks=250, shard_rows=500, workers=2)


@pytest.mark.parametrize(("pattern", "count"), [("blocks/*", 1), ("blocks/*.parquet", 9), ("*/*.parquet", 34)])
def test_killed_at_any_moment_and_started_again_it_writes_the_same_bytes(
    large, synth, shards, attempt, start, pattern, count
):
    expected = shards(synth(large))
    folder = attempt("synth", large.model_dump(mode="json"))
    process = start(folder)
    wait_for(lambda: len(list(folder.glob(pattern))) >= count or process.poll() is not None)
    process.kill()
    process.wait()
    assert not (folder / "manifest.json").exists(), "killed too late to show anything"
    wait_for(lambda: not group_members(process.pid))  # the workers go too, though nobody told them
    assert start(folder).wait() == 0
    assert shards(folder) == expected
    assert (folder / "manifest.json").exists() and not (folder / "blocks").exists()


def test_a_signal_to_the_whole_job_stops_it_between_two_blocks(large, synth, shards, attempt, start):
    folder = attempt("synth", large.model_dump(mode="json"))
    process = start(folder)
    wait_for(lambda: len(list(folder.glob("blocks/*.parquet"))) >= 2)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == 75
    wait_for(lambda: not group_members(process.pid))
    assert not list(folder.glob("blocks/*.writing"))
    assert start(folder).wait() == 0
    assert shards(folder) == shards(synth(large))


def test_ranks_in_processes_of_their_own_write_the_same_bytes_though_one_is_killed(
    large, synth, shards, attempt, start
):
    folder = attempt("synth", large.model_dump(mode="json"))
    first, second = start(folder, 0, 2), start(folder, 1, 2)
    wait_for(lambda: len(list(folder.glob("blocks/*.parquet"))) >= 4)
    second.kill()
    second.wait()
    again = start(folder, 1, 2)
    assert (first.wait(), again.wait()) == (0, 0)
    assert shards(folder) == shards(synth(large))
