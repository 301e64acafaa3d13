"""The life of a job on the real cluster: whatever is killed, lost or cancelled, there is one job for one attempt."""

import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

BIN = Path(sys.executable).parent
LONG = ("sft.steps=100000", "sft.checkpoint.every_steps=10")


def test_a_job_is_found_again_while_it_waits_and_when_it_has_ended_unseen(life, faults):
    """While it runs: test_faults.py."""
    life.settings("additional: {begin: now+1hour}")
    first = life.snakemake("synth")
    first.sees("waits in the queue: its")
    first.kill()
    job = life.job("synth")

    began = time.monotonic()
    second = life.snakemake("synth")
    second.sees("synth: re-attached")
    line = second.line("synth: re-attached")
    faults.note("`kill -9` of snakemake, the job is queued", line, time.monotonic() - began)
    second.sees(f"job {job} waits in the queue: its time to start has not come")
    second.kill()

    life.release(job)
    life.cluster.wait(job, "COMPLETED")
    began = time.monotonic()
    last = life.snakemake("synth")
    assert last.ends() == 0, last.said()
    line = last.line("synth: found finished")
    faults.note("`kill -9` of snakemake, the job ends while nobody looks", line, time.monotonic() - began)
    assert life.jobs("synth") == [job]


def test_a_submit_that_was_killed_before_the_note_leaves_one_job(life, tmp_path, faults):
    """sbatch itself kills the process that called it, at the worst moment."""
    life.settings("additional: {begin: now+1hour}")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(
        f'#!/bin/bash\n{shutil.which("sbatch")} "$@"\n[[ $* == *--test-only* ]] || kill -9 $PPID\n'
    )
    (folder / "sbatch").chmod(0o755)
    first = life.snakemake("synth", env={"PATH": f"{folder}:{BIN}:{os.environ['PATH']}"})
    first.sees("killed before it had noted the job")
    first.kill()
    assert life.record("synth").job_id is None

    began = time.monotonic()
    second = life.snakemake("synth")
    second.sees("synth: re-attached")
    faults.note(
        "`kill -9` between `sbatch` and the record", second.line("synth: re-attached"), time.monotonic() - began
    )
    assert life.jobs("synth") == [life.job("synth")]


def test_of_two_that_start_at_once_one_makes_the_job(life, faults):
    began = time.monotonic()
    commands = [life.snakemake("synth") for _ in range(2)]
    codes = [command.ends() for command in commands]
    took = time.monotonic() - began
    assert sorted(codes) == [0, 1], [command.said() for command in commands]
    late = commands[codes.index(1)]
    line = late.line("works on this run" if "works on this run" in late.said() else "worked on this run until just now")
    faults.note("two snakemakes at once", line, took)
    assert [path.name for path in life.stage("synth").glob("*-[0-9]")] == [life.record("synth").attempt]
    assert life.jobs("synth") == [life.job("synth")]


def test_signals_to_the_outer_command_alone_reach_the_one_that_waits(life):
    life.settings("additional: {begin: now+1hour}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        command = life.snakemake("synth")
        command.sees("waits in the queue: its")
        assert command.tell(number) != 0
        log = life.stage("synth") / "terminal.log"
        life.wait_for(lambda: "detached; job" in log.read_text(), "the detached command")  # noqa: B023
        assert life.cluster.state(life.job("synth")) == "PENDING"

    for start in (lambda: life.qianka("run", "tiny.yaml"), lambda: life.snakemake("synth")):
        job = life.job("synth")
        command = start()
        command.sees(f"synth: job {job} waits in the queue")
        assert command.tell(signal.SIGINT) != 0
        life.cluster.wait(job, "CANCELLED")
        assert f"cancelled job {job}" in command.said(), command.said()
        again = life.snakemake("synth")
        again.sees("synth: resumed")
        again.sees("waits in the queue: its")
        again.kill()


def test_attach_cancel_and_logs(life, qianka):
    folder = life.folder
    assert qianka(folder, "stage", "synth", "tiny.yaml").returncode == 0
    command = life.qianka("stage", "sft", "tiny.yaml", *LONG)
    command.sees("steps/s")
    job = life.job("sft")
    life.settings("additional: {comment: changed}")

    wrong = qianka(folder, "attach", "tinny")
    assert wrong.returncode == 2
    assert "did you mean tiny?" in wrong.stdout
    assert "did you mean sft?" in qianka(folder, "logs", "tiny", "stf").stdout

    before = time.monotonic()
    attached = life.qianka("attach")
    attached.sees(f"sft: re-attached: {life.record('sft').attempt}, Slurm job {job}")
    took = time.monotonic() - before
    following = life.qianka("logs", "-f")
    following.sees(f"sft: {life.record('sft').attempt} on 1 rank(s), job {job}")
    assert following.tell(signal.SIGINT) != 0
    assert took < 30, "it is 2 s on a quiet machine"

    cancelled = life.qianka("cancel")
    assert cancelled.ends() == 0, cancelled.said()
    assert re.search(rf"sft: job {job} has ended; it had done \d+ of 100000 steps, and committed \d+", cancelled.said())
    for waiter in (command, attached):
        assert waiter.ends() == 1
        assert "was cancelled by root" in waiter.said(), waiter.said()
    assert life.jobs("sft") == [job]
    assert "nothing of run tiny is under way" in qianka(folder, "cancel").stdout
