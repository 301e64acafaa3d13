"""The folder of the doctor's job is gone after it, whoever still writes there."""

import contextlib
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from slurm.health.job import FOLDER, end, remove


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / f"{FOLDER}1-x"
    made.mkdir()
    for count in range(2000):
        (made / f"old-{count}").touch()
    return made


@contextlib.contextmanager
def written(place: Path | int, seconds: float | None = None) -> Generator[None]:
    """Files are begun in `place`, a path or a handle, until the block or the time is over."""
    over = threading.Event()
    end = time.monotonic() + (seconds or float("inf"))

    def write() -> None:
        handle, prefix = (place, "") if isinstance(place, int) else (None, f"{place}/")
        for number in itertools.count():
            if over.is_set() or time.monotonic() > end:
                return
            with contextlib.suppress(FileNotFoundError):
                os.close(os.open(f"{prefix}new-{number}", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=handle))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


@pytest.fixture
def handle(folder) -> Generator[int]:
    opened = os.open(folder, os.O_RDONLY)
    yield opened
    os.close(opened)


def test_a_node_that_writes_by_path_leaves_nothing(folder):
    said: list[str] = []
    with written(folder):
        remove(folder, said.append)
    assert (list(folder.parent.iterdir()), said) == ([], [])


def test_a_node_whose_file_system_still_knows_the_folder_leaves_nothing_once_it_has_ended(folder, handle, monkeypatch):
    """As on NFS, where another node's handle of a renamed folder stays good for a while."""
    monkeypatch.setattr("slurm.health.job.END_SECONDS", 60.0)
    said: list[str] = []
    began = time.monotonic()
    with written(handle, seconds=1):
        remove(folder, said.append)
    assert (list(folder.parent.iterdir()), said) == ([], [])
    assert time.monotonic() - began < 30


def test_a_folder_that_cannot_be_removed_is_named(folder, handle, monkeypatch):
    monkeypatch.setattr("slurm.health.job.END_SECONDS", 0.3)
    said: list[str] = []
    with written(handle):
        remove(folder, said.append)
    # Unless the removal was faster than the writer, once.
    assert not list(folder.parent.iterdir()) or (len(said) == 1 and f"{folder.name}-ended: not removed" in said[0])


def test_the_steps_of_a_frozen_node_are_not_waited_for(monkeypatch):
    monkeypatch.setattr("slurm.health.job.END_SECONDS", 0.5)
    steps = {node: subprocess.Popen(["sleep", seconds]) for node, seconds in (("n0", "60"), ("n1", "0.1"))}
    os.waitid(os.P_PID, steps["n1"].pid, os.WEXITED | os.WNOWAIT)  # it has ended, which nobody has asked for yet
    began = time.monotonic()
    end(steps)
    assert time.monotonic() - began < 30
    assert steps["n0"].returncode == -9 and steps["n1"].returncode == 0
