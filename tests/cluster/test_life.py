"""The life of a job on the real cluster: whatever is killed, lost or cancelled, there is one job for one attempt."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import pytest

from checkpoints.manifest import Result
from slurm.record import Record, read_record

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
LATER = "slurm.additional.begin=now+1hour"
"""Keeps a job in the queue, until `release`."""
LONG = ("sft.steps=100000", "sft.checkpoint.every_steps=10")


def wait_for(condition: Callable[[], object], what: str, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not after {seconds} s"
        time.sleep(0.1)


class Command:
    """A command of a person at a terminal: a session of its own, and what it has shown."""

    def __init__(self, folder: Path, *words: str, env: dict[str, str] | None = None) -> None:
        self.path = folder / f"terminal-{len(list(folder.glob('terminal-*')))}"
        settings = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "400", "OMP_NUM_THREADS": "1"}
        with self.path.open("wb") as out:
            self.process = psutil.Popen(
                words, cwd=folder, env=settings | (env or {}), stdout=out, stderr=out, start_new_session=True
            )

    def said(self) -> str:
        return self.path.read_text(errors="replace")

    def sees(self, text: str, seconds: float = 90) -> None:
        wait_for(lambda: text in self.said() or self.process.poll() is not None, f"{text!r} in {self.said()}", seconds)
        assert text in self.said(), self.said()

    def kill(self) -> None:
        """SIGKILL to the command and all that it has started."""
        below = self.process.children(recursive=True) if self.process.poll() is None else []
        for process in [*below, self.process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def tell(self, number: int) -> int:
        """Signal the process alone, and return its exit code."""
        self.process.send_signal(number)
        return self.ends(30)

    def ends(self, seconds: float = 120) -> int:
        try:
            return self.process.wait(seconds)
        except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
            pytest.fail(f"it goes on: {self.said()}")


class Life:
    """A run in a folder of its own."""

    def __init__(self, folder: Path, cluster) -> None:
        self.folder, self.cluster, self.commands = folder, cluster, list[Command]()

    def start(self, *words: str, env: dict[str, str] | None = None) -> Command:
        self.commands.append(Command(self.folder, *words, env=env))
        return self.commands[-1]

    def snakemake(self, stage: str, **settings) -> Command:
        options = ("--cores", "1", stage, "--configfile", "tiny.yaml")
        return self.start("snakemake", "--snakefile", str(ROOT / "Snakefile"), *options, **settings)

    def qianka(self, *words: str, **settings) -> Command:
        return self.start(sys.executable, "-P", "-m", "workflow.cli", *words, **settings)

    def stage(self, stage: str) -> Path:
        return self.folder / "runs" / "tiny" / stage

    def record(self, stage: str) -> Record:
        record = read_record(self.stage(stage))
        assert record
        return record

    def job(self, stage: str) -> str:
        wait_for(lambda: self.stage(stage).is_dir() and read_record(self.stage(stage)), "the intent")
        wait_for(lambda: self.record(stage).job_id, "the job's id")
        return self.record(stage).job_id or ""

    def jobs(self, stage: str) -> list[str]:
        """Ids of all jobs that the accounting knows by the name of the stage's attempt, each once."""
        options = ("-n", "-X", "-P", "-o", "JobID", "--starttime=now-1hour", f"--name={self.record(stage).job_name}")
        return sorted(set(self.cluster.run("sacct", *options).split()))

    def release(self, job: str) -> None:
        self.cluster.run("scontrol", "update", f"jobid={job}", "starttime=now")


@pytest.fixture
def life(cluster, tiny) -> Generator[Life]:
    tiny.write_text(tiny.read_text().replace("{executor: local}", "{executor: slurm, interface: lo}"))
    life = Life(tiny.parent, cluster)
    yield life
    for command in life.commands:
        command.kill()


def write_config(life: Life, *lines: str) -> None:
    """Change the slurm section of the config, which makes no other attempt."""
    path = life.folder / "tiny.yaml"
    kept = path.read_text().partition("slurm:")[0]
    path.write_text(f"{kept}slurm: {{executor: slurm, interface: lo{''.join(', ' + line for line in lines)}}}\n")


def test_a_job_is_found_again_while_it_waits_runs_and_has_ended(life):
    write_config(life, "additional: {begin: now+1hour}")
    first = life.snakemake("synth")
    first.sees("waits in the queue")
    first.kill()
    job = life.job("synth")

    second = life.snakemake("synth")
    second.sees("synth: re-attached")
    second.sees(f"job {job} waits in the queue: Slurm lets some time pass")
    second.kill()

    life.release(job)
    life.cluster.wait(job, "RUNNING", "COMPLETED")
    third = life.snakemake("synth")
    third.sees("synth: ")
    third.kill()

    life.cluster.wait(job, "COMPLETED")
    last = life.snakemake("synth")
    assert last.ends() == 0, last.said()
    assert "synth: found finished" in last.said() or "Nothing to be done" in last.said()
    assert life.jobs("synth") == [job]


def test_a_submit_that_was_killed_before_the_note_leaves_one_job(life, tmp_path):
    """sbatch itself kills the process that called it, at the worst moment."""
    write_config(life, "additional: {begin: now+1hour}")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(f'#!/bin/bash\n{shutil.which("sbatch")} "$@"\nkill -9 $PPID\n')
    (folder / "sbatch").chmod(0o755)
    first = life.snakemake("synth", env={"PATH": f"{folder}:{BIN}:{os.environ['PATH']}"})
    first.sees("killed before it had noted the job")
    first.kill()
    assert life.record("synth").job_id is None

    second = life.snakemake("synth")
    second.sees("synth: re-attached")
    assert life.jobs("synth") == [life.job("synth")]


def test_of_two_that_start_at_once_one_makes_the_job(life):
    commands = [life.snakemake("synth") for _ in range(2)]
    codes = [command.ends() for command in commands]
    texts = [command.said() for command in commands]
    assert 0 in codes, texts
    assert codes == [0, 0] or any("works on this run" in text for text in texts)
    assert len(life.jobs("synth")) == 1


def test_signals_to_the_outer_command_alone_reach_the_one_that_waits(life):
    write_config(life, "additional: {begin: now+1hour}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        command = life.snakemake("synth")
        command.sees("waits in the queue")
        assert command.tell(number) != 0
        wait_for(lambda: "detached; job" in (life.stage("synth") / "terminal.log").read_text(), "the detached command")
        assert life.cluster.state(life.job("synth")) == "PENDING"
    job = life.job("synth")

    for start in (lambda: life.qianka("run", "tiny.yaml"), lambda: life.snakemake("synth")):
        command = start()
        command.sees("waits in the queue")
        assert life.job("synth") == job
        assert command.tell(signal.SIGINT) != 0
        life.cluster.wait(job, "CANCELLED")
        assert f"cancelled job {job}" in command.said(), command.said()
        again = life.snakemake("synth")
        again.sees("synth: resumed")
        wait_for(lambda: life.job("synth") != job, "another job")
        job = life.job("synth")
        again.kill()


def test_attach_cancel_and_logs(life, qianka):
    folder = life.folder
    assert qianka(folder, "stage", "synth", "tiny.yaml").returncode == 0
    command = life.qianka("stage", "sft", "tiny.yaml", *LONG)
    command.sees("steps/s")
    job = life.job("sft")
    write_config(life, "additional: {comment: changed}")

    wrong = qianka(folder, "attach", "tyni")
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
    assert took < 5, "it has to be 2 s on a quiet machine"

    cancelled = life.qianka("cancel")
    assert cancelled.ends() == 0, cancelled.said()
    assert re.search(rf"sft: job {job} has ended; it had done \d+ of 100000 steps, and committed \d+", cancelled.said())
    for waiter in (command, attached):
        assert waiter.ends() == 1
        assert "was cancelled by root" in waiter.said(), waiter.said()
    assert life.jobs("sft") == [job]
    assert "nothing of run tiny is under way" in qianka(folder, "cancel").stdout

    (folder / "tiny.yaml").write_text((folder / "tiny.yaml").read_text())
    steps = Result(life.stage("synth") / "manifest.json")
    assert steps.manifest.stage == "synth"
