"""Why a job starts again, from what sacct, sinfo and squeue say, and what it costs."""

import os
import re
import time
from pathlib import Path

import pytest

from data.progress import Progress
from slurm.claim import Attached, submit_or_attach
from slurm.config import SlurmConfig
from slurm.query.queue import Said
from slurm.verdict import Verdict, clear_verdict, write_verdict
from slurm.wait import restart
from slurm.wait.attach import Waiter
from slurm.wait.display import Display
from slurm.wait.restart import made_room, went_on, why_again
from slurm.wait.state import Kind, State

SOON = "SOON"
"""Stands for a time after the test has begun, which may be long after this file was read."""
LONG_AGO = "2001-01-01T00:00:00"
STOPPED = Verdict(why="stopped", message="step 9", rank=0, node="mx0", job_id="7", time=1, traceback="")


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Have the three commands print something; None takes their daemon away."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(restart, "TRY_SECONDS", 0.01)

    def write(**texts: str | None) -> None:
        soon = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 60))
        for name in ("sacct", "sinfo", "squeue"):
            text = texts.get(name)
            text = text and text.replace(SOON, soon)
            (tmp_path / name).write_text("#!/bin/sh\n" + ("exit 1" if text is None else f"echo '{text}'") + "\n")
            (tmp_path / name).chmod(0o755)

    return write


@pytest.mark.parametrize(
    ("texts", "verdict", "words"),
    [
        ({"sacct": f"{SOON}|PREEMPTED|mx0"}, None, "was preempted by a job of higher priority"),
        ({"sacct": f"{SOON}|NODE_FAIL|mx0", "sinfo": "mx0|down*"}, None, "lost a node, .*: mx0 \\(down\\*\\)"),
        ({"sacct": f"{SOON}|NODE_FAIL|mx0", "sinfo": "mx0|idle"}, None, "lost one of its nodes mx0"),
        ({"sinfo": "mx0|drain"}, None, "was ended by the cluster"),
        ({"sinfo": "mx0|drain*"}, None, "lost a node, .*: mx0 \\(drain\\*\\)"),
        (
            {"sacct": f"{SOON}|REQUEUED|mx0", "sinfo": "mx0|mix"},
            STOPPED,
            "was requeued, and committed first \\(step 9\\)",
        ),
        ({"sacct": f"{SOON}|REQUEUED|mx0"}, None, "was requeued; Slurm"),
        ({"sacct": f"{LONG_AGO}|PREEMPTED|mx0"}, None, "was ended by the cluster"),
        ({}, STOPPED, "was requeued, and committed first"),
        ({}, None, "was ended by the cluster, which starts it again"),
    ],
)
def test_why_a_job_starts_again(says, texts, verdict, words):
    says(**texts)
    line = why_again("7", "mx0", time.time(), verdict)
    assert re.search(words, line), line


def test_for_whom_a_job_made_room(says, monkeypatch):
    monkeypatch.setattr(restart, "ROOM_SECONDS", 0.01)
    says(squeue=f"8 (partition urgent)|{SOON}")
    assert made_room("7", "mx0", time.time(), lambda: False) == "has made room for job 8 (partition urgent)"
    for squeue in (None, f"7 (partition batch)|{SOON}", f"8 (partition urgent)|{LONG_AGO}"):
        says(squeue=squeue)
        assert made_room("7", "mx0", time.time(), lambda: False) == ""


def test_what_starts_there_after_the_job_runs_again_has_not_displaced_it(says):
    says(squeue=None)
    assert made_room("7", "mx0", time.time(), lambda: True) == ""  # at once


def test_what_a_restart_has_cost():
    reading = {"total": 100, "unit": "steps", "time": 1, "started": 1, "message": ""}
    before, now = {**reading, "done": 57, "first": 0}, {**reading, "done": 50, "first": 50}
    assert went_on(before, now) == "goes on from 50 of 100 steps; 7 steps are done again"
    assert "; 0 blocks are done again" in went_on(before, {**now, "unit": "blocks"})


@pytest.fixture
def attached(request_for, fake_slurm, knob, monkeypatch, tmp_path) -> Attached:
    """To a job on a cluster whose nodes are all there."""
    knob("held")
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho 'mx0|idle'\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(restart, "TRY_SECONDS", 0.01)
    return submit_or_attach(request_for(slurm=SlurmConfig(executor="slurm")))


def test_of_two_starts_between_two_looks_each_is_told_once(attached, tmp_path):
    with Display("synth", tmp_path / "terminal.log") as display:
        waiter = Waiter(attached, display, [])

        def slurm_says(kind: Kind, word: str, restarts: int | None) -> None:
            waiter._follow(State(kind, word, Said(word, nodes="mx0", restarts=restarts)))
            while waiter.news:
                waiter._show()

        def goes_on(start: int, first: int) -> None:
            Progress(attached.folder, 100, "steps", done=first + 1, first=first, started=start).write()
            waiter._show()

        slurm_says(Kind.ACTIVE, "RUNNING", None)  # sacct, which does not count them
        slurm_says(Kind.ACTIVE, "RUNNING", 5)
        goes_on(1, 0)
        slurm_says(Kind.RETURNING, "REQUEUED", 5)
        slurm_says(Kind.ACTIVE, "PENDING", 6)
        goes_on(2, 10)
        slurm_says(Kind.ACTIVE, "PENDING", 7)  # the start from 10 was over before Slurm was asked about it
        slurm_says(Kind.ACTIVE, "RUNNING", 7)
        goes_on(3, 20)
        slurm_says(Kind.ACTIVE, "RUNNING", 7)
    said = (tmp_path / "terminal.log").read_text()
    assert said.count("starts it again") == 2
    assert re.findall("goes on from [0-9]+", said) == ["goes on from 10", "goes on from 20"]


def test_what_a_start_said_and_how_far_it_was_is_told_though_the_next_one_began_before_slurm_was_asked_again(
    attached, monkeypatch, tmp_path
):
    monkeypatch.setattr(restart, "ROOM_TRIES", 0)
    with Display("synth", tmp_path / "terminal.log") as display:
        waiter = Waiter(attached, display, [])
        waiter._follow(State(Kind.ACTIVE, "RUNNING", Said("RUNNING", nodes="mx0", restarts=0)))
        Progress(attached.folder, 100, "steps", done=57, first=0, started=1).write()
        waiter._show()
        write_verdict(attached.folder, STOPPED)
        waiter._show()
        clear_verdict(attached.folder, 0)
        Progress(attached.folder, 100, "steps", done=51, first=50, started=2).write()
        waiter._follow(State(Kind.ACTIVE, "RUNNING", Said("RUNNING", nodes="mx0", restarts=1)))
        while waiter.news:
            waiter._show()
    said = (tmp_path / "terminal.log").read_text()
    assert "was requeued, and committed first (step 9)" in said
    assert "goes on from 50 of 100 steps; 7 steps are done again" in said
