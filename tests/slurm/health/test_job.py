"""The folder of the doctor's job is gone after it, whoever still writes there."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from slurm.health.job import FOLDER, end, remove


def write_until(over: threading.Event, name_of, dir_fd: int | None = None) -> None:
    count = 0
    while not over.is_set():
        count += 1
        with contextlib.suppress(FileNotFoundError):
            os.close(os.open(name_of(count), os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=dir_fd))


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / f"{FOLDER}1-x"
    made.mkdir()
    for count in range(2000):
        (made / f"old-{count}").touch()
    return made


def test_a_node_that_writes_by_path_leaves_nothing(folder):
    over, said = threading.Event(), []
    writer = threading.Thread(target=write_until, args=(over, lambda count: folder / f"new-{count}"))
    writer.start()
    try:
        remove(folder, said.append)
    finally:
        over.set()
        writer.join()
    assert (list(folder.parent.iterdir()), said) == ([], [])


def test_a_node_whose_file_system_still_knows_the_folder_leaves_nothing_once_it_has_ended(folder):
    """As on NFS, where another node's handle of a renamed folder stays good for a while."""
    over, said = threading.Event(), []
    handle = os.open(folder, os.O_RDONLY)
    writer = threading.Thread(target=write_until, args=(over, lambda count: f"new-{count}", handle))
    threading.Timer(1, over.set).start()
    writer.start()
    began = time.monotonic()
    remove(folder, said.append)
    writer.join()
    os.close(handle)
    assert (list(folder.parent.iterdir()), said) == ([], [])
    assert time.monotonic() - began < 5


def test_a_folder_that_cannot_be_removed_is_named(folder, monkeypatch):
    monkeypatch.setattr("slurm.health.job.END_SECONDS", 0.3)
    over, said = threading.Event(), []
    handle = os.open(folder, os.O_RDONLY)
    writer = threading.Thread(target=write_until, args=(over, lambda count: f"new-{count}", handle))
    writer.start()
    try:
        remove(folder, said.append)
    finally:
        over.set()
        writer.join()
        os.close(handle)
    # Unless the removal was faster than the writer, once.
    assert not list(folder.parent.iterdir()) or (len(said) == 1 and f"{folder.name}-ended: not removed" in said[0])


def test_the_steps_of_a_frozen_node_are_not_waited_for(monkeypatch):
    import subprocess

    monkeypatch.setattr("slurm.health.job.END_SECONDS", 0.5)
    steps = {node: subprocess.Popen(["sleep", seconds]) for node, seconds in (("n0", "60"), ("n1", "0.1"))}
    began = time.monotonic()
    end(steps)
    assert time.monotonic() - began < 5
    assert steps["n0"].returncode == -9 and steps["n1"].returncode == 0
