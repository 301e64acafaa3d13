"""Asynchronous mode as a person without a cluster runs it: local actors, more of them, kills, status and replay."""

import contextlib
import json
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
from data.progress import read_progress
from slurm.actors.arrays import read_arrays
from slurm.record import read_record
from stages.rl.batch_log import read_batches
from stages.rl.coordinator.table import read_table
from stages.rl.positions import positions as positions_of

pytestmark = pytest.mark.slow
LIMIT = 200.0
QIANKA = (sys.executable, "-P", "-m", "workflow.cli")


class Run:
    """A run whose first two stages have ended; its rl stage is another than that of the reference."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.stage = folder, folder / "runs/tiny/rl"
        self.words = ("tiny.yaml", "--cores", "1", "rl.mode=asynchronous", f"rl.steps={steps}")
        self.before = set(self.stage.glob("*-*"))

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """In a session of its own."""
        with (self.folder / "said.log").open("ab") as log:
            settings = os.environ | {"OMP_NUM_THREADS": "1"}
            words = [*QIANKA, *command, *self.words]
            return subprocess.Popen(
                words, cwd=self.folder, env=settings, start_new_session=True, stdout=log, stderr=log
            )

    def said(self) -> str:
        return (self.folder / "said.log").read_text(errors="replace")

    @property
    def attempt(self) -> Path:
        record = read_record(self.stage)
        assert record
        return self.stage.resolve() / record.attempt

    def done(self) -> int:
        """Steps of the newest attempt."""
        found = [
            int((read_progress(path) or {"done": 0})["done"]) for path in set(self.stage.glob("*-*")) - self.before
        ]
        return max(found, default=0)

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < end, self.said()
            time.sleep(0.05)

    def goes_on(self, steps: int) -> None:
        """So many more steps are done."""
        wanted = self.done() + steps
        self.until(lambda: self.done() >= wanted)

    def processes(self, word: str = "") -> list[psutil.Process]:
        """Those whose command line names the folder, and has this word."""
        found = list[psutil.Process]()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                line = " ".join(process.cmdline())
                found += [process] * (str(self.folder) in line and word in line)
        return found

    def playing(self) -> int:
        """Actors that live and have weights."""
        jobs = {member.job for member in read_table(self.attempt).members if member.version >= 0}
        return sum(str(process.pid) in jobs for process in self.processes("slurm.actor"))


@pytest.fixture
def begun(reference: Path, tmp_path: Path) -> Generator[Callable[[int], Run]]:
    """`begun(steps)`; whatever a test leaves behind is ended with it."""
    shutil.copytree(reference, tmp_path, dirs_exist_ok=True, symlinks=True)
    yield lambda steps: Run(tmp_path, steps)
    for process in Run(tmp_path, 0).processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_a_run_with_local_actors_shows_them_leaves_none_and_each_of_its_batches_can_be_seen_again(
    begun: Callable[[int], Run], qianka
):
    run = begun(30)  # long enough for all to join
    done = qianka(run.folder, "stage", "rl", *run.words, "rl.asynchronous.evaluate_every=2")
    assert done.returncode == 0, done.stdout
    assert "actors: 2 and an evaluator, processes of this machine" in done.stdout

    shown = qianka(run.folder, "status")
    told = re.findall("ended with the run|: the run is done|: told to stop", shown.stdout)
    assert shown.returncode == 0 and len(told) == 3, shown.stdout
    run.until(lambda: not run.processes())

    for step in (1, 2, 3, 15, 29, 30):
        again = qianka(run.folder, "replay", "tiny", "--step", str(step))
        assert again.returncode == 0, again.stdout
        assert f"batch of step {step}, learned by version {step - 1}" in again.stdout
        assert "all 8 groups are those that were trained on, bit for bit" in again.stdout
    beyond = qianka(run.folder, "replay", "--step", "31")
    assert beyond.returncode == 2 and "no step 31; the log has steps 1 to 30" in beyond.stdout


@pytest.mark.timeout(600)
def test_the_command_that_waits_an_actor_and_the_learner_are_killed_and_nothing_is_lost_or_asked_for_twice(
    begun: Callable[[int], Run],
):
    run = begun(60)
    waiting = run.start("run")
    run.until(lambda: run.done() >= 3)
    os.killpg(waiting.pid, signal.SIGKILL)
    waiting.wait()
    run.goes_on(2)
    run.processes("slurm.actor")[0].kill()
    learner = psutil.Process(run.processes("stages.rl.store")[0].ppid())

    learner.suspend()  # so that the command, which takes its time, finds it at work
    again = run.start("run")
    run.until(lambda: "re-attached" in run.said())
    learner.resume()
    run.goes_on(2)
    assert again.poll() is None, run.said()
    assert len(read_arrays(run.attempt)) == 1, "nobody has asked for actors a second time"
    learner.kill()
    again.wait(LIMIT)

    last = run.start("stage", "rl")
    assert last.wait(LIMIT) == 0, run.said()
    batches = read_batches(Result(run.stage / "manifest.json").folder)
    assert len(batches) == len(batches["position"].unique()) == 60 * 8
    assert batches["step"].unique().to_pylist() == list(range(1, 61))
    run.until(lambda: not run.processes())


def test_more_actors_come_while_the_run_goes_on_and_all_end_when_it_is_cancelled(begun: Callable[[int], Run], qianka):
    run = begun(100_000)
    waiting = run.start("stage", "rl")
    run.until(lambda: run.done() >= 1 and run.playing() == 2)
    added = qianka(run.folder, "actors", "add", "2")
    assert added.returncode == 0 and "2 more actors of run tiny: processes of this machine" in added.stdout
    run.until(lambda: run.playing() == 4)
    run.goes_on(3)
    shown = qianka(run.folder, "actors")
    assert shown.stdout.count("plays") >= 4, shown.stdout
    attempt = run.attempt
    cancelled = qianka(run.folder, "cancel")
    assert cancelled.returncode == 0 and "rl: ended its actors" in cancelled.stdout, cancelled.stdout
    waiting.wait(LIMIT)
    run.until(lambda: not run.processes())
    positions = read_batches(attempt)["position"].to_pylist()
    state = json.loads((max((attempt / "checkpoints").glob("step-*")) / "state.json").read_text())["state"]["caller"]
    assert sorted(positions) == sorted({*range(state["cursor"]), *positions_of(state["ahead"])})
