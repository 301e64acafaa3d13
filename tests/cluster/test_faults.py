"""What goes wrong on a cluster, done to a real one: the stage goes on from the committed step, and a line says why.

What these tests see and measure is the table of docs/faults.md.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import pytest

from data.progress import read_progress
from slurm.record import read_record

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = (
    "PreemptMode=SUSPEND,GANG",
    "PartitionName=cancelling PriorityTier=1 PreemptMode=CANCEL GraceTime=15",
    "PartitionName=suspending PriorityTier=1 PreemptMode=SUSPEND",
)
"""A site on which jobs of one partition are cancelled, and those of another suspended, for those of `urgent`."""
DEAF = """
import os, signal
set_handler = signal.signal
signal.signal = lambda number, to: set_handler(number, signal.SIG_IGN if number == signal.SIGUSR2 else to)
signal.signal(signal.SIGUSR2, None)
if os.environ.get("SLURM_RESTART_COUNT") == "1":
    from data.budget import Budget
    Budget.is_spent = lambda budget: False
"""
"""The signal before the limit reaches nobody, and in the second start of the job nobody looks at the clock either."""


class Training:
    """An endless sft stage on two nodes, into which one fault after the other is put, and a snakemake that waits."""

    def __init__(self, life, faults) -> None:
        self.life, self.cluster, self.faults = life, life.cluster, faults
        config = life.folder / "tiny.yaml"
        text = config.read_text().replace("  steps: 120\n", "  steps: 100000\n")
        config.write_text(text.replace("validate_every_steps: 20", "validate_every_steps: 1000"))
        self.command = None
        self.lines: tuple[str, ...] = ()

    def runs(self, *lines: str, env: dict[str, str] | None = None) -> "Training":
        """The stage trains, with these lines in the slurm section of the config, and snakemake waits for it."""
        lines = lines or ("sft: {nodes: 2}",)
        if lines != self.lines:
            self.stop()
            self.lines = lines
            self.life.settings(*lines)
        called = time.time()
        if self.command is None or self.command.process.poll() is not None:
            self.command = self.life.snakemake("sft", env=env)
        over = self.command.process.poll
        self.life.wait_for(lambda: over() is not None or self.has_trained(called), f"steps: {self.command.path}")
        assert over() is None, self.command.said()
        self.strikes()
        return self

    def stop(self) -> None:
        """End the job."""
        if self.cluster.mine():
            assert self.life.qianka("cancel").ends() == 0
            self.command.ends()
            self.life.wait_for(lambda: not self.cluster.mine(), "the nodes are free")

    def has_trained(self, called: float) -> bool:
        """Whether the job has committed something, and goes on."""
        now = self.reading()
        return "steps/s" in self.command.said() and now["time"] > called and now["done"] - now["first"] >= 25

    @property
    def job(self) -> str:
        return self.life.job("sft")

    def nodes(self) -> list[str]:
        """Those of the job, the first one first."""
        return self.cluster.job_nodes(self.job)

    def reading(self) -> dict:
        """How far the stage is."""
        folder = self.life.stage("sft")
        record = read_record(folder) if folder.is_dir() else None
        none = {"done": 0, "first": 0, "started": 0, "time": 0}
        return (read_progress(folder / record.attempt) if record else None) or none

    def strikes(self) -> None:
        """A fault comes now."""
        self.at, self.before, self.took = time.monotonic(), self.reading(), -1.0
        self.said = len(self.command.said()) if self.command else 0

    def sees(self, text: str, seconds: float = 90) -> str:
        """The line with `text` that is said after the fault."""
        self.life.wait_for(
            lambda: text in self.command.said()[self.said :], f"{text!r} in {self.command.path}", seconds
        )
        return self.command.line(text, self.said)

    def steps(self, seconds: float = 120) -> None:
        """Wait for the next step of the same start."""
        self.life.wait_for(lambda: self.reading()["done"] > self.before["done"], "another step", seconds)
        self.took = time.monotonic() - self.at
        assert self.reading()["started"] == self.before["started"], "it was started again"

    def goes_on(self, fault: str, text: str = "") -> None:
        """The same start goes on, and says a line with `text`."""
        if self.took < 0:
            self.steps()
        self.faults.note(fault, self.sees(text) if text else "", self.took)

    def starts_again(self, fault: str, text: str) -> str:
        """Another start goes on from a committed step; the line with `text`."""

        def is_new() -> bool:
            now = self.reading()
            return now["started"] != self.before["started"] and now["done"] > now["first"]

        self.life.wait_for(is_new, f"a step after {fault}: {self.command.path}", 120)
        took, lost = time.monotonic() - self.at, self.done_again()
        line = self.sees(text)
        self.faults.note(fault, line, took, lost)
        return line

    def done_again(self) -> int:
        """Steps that the present start has to do again, as a person is told."""
        told = self.sees("steps are done again")
        first, lost = re.search(r"goes on from (\d+) of \d+ steps; (\d+) steps are done again", told).groups()
        assert int(first) == self.reading()["first"] >= 20
        return int(lost)

    def ends(self, fault: str, text: str) -> str:
        """Command and job end, with a line with `text`, and the same command resumes; the line."""
        assert self.command.ends() != 0, self.command.said()
        self.life.wait_for(lambda: not self.cluster.mine(), "the nodes are free")
        took, line = time.monotonic() - self.at, self.sees(text, 5)
        self.runs(*self.lines)
        self.said = 0
        self.faults.note(fault, line, took, self.done_again())
        return line


@pytest.fixture(scope="module")
def training(lasting, faults) -> Training:
    """One for all tests: each begins where the one before has left it."""
    return Training(lasting, faults)


@pytest.fixture
def hook(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """An environment in which every Python runs some code when it starts."""

    def hooked(code: str) -> dict[str, str]:
        path = tmp_path / "hook"
        path.mkdir()
        (path / "sitecustomize.py").write_text(code)
        return {"PYTHONPATH": os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])}

    return hooked


@pytest.fixture
def frozen() -> Generator[list[psutil.Process]]:
    """Processes that the test has stopped; they go on after it."""
    found: list[psutil.Process] = []
    yield found
    for process in found:
        if process.is_running():
            process.send_signal(signal.SIGCONT)


def in_urgent(training, seconds: int) -> str:
    """Id of a job that preempts all others."""
    return training.cluster.submit(f"sleep {seconds}", "--partition=urgent", "--nodes=4", "--exclusive")


def test_a_killed_command_finds_its_job_again(training):
    job = training.runs().job
    training.command.kill()
    training.strikes()
    training.steps()
    training.command, training.said = training.life.snakemake("sft"), 0
    training.goes_on("`kill -9` of snakemake, the job runs", "sft: re-attached")
    assert training.job == max(training.life.jobs("sft"), key=int) == job


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "TERM"), (signal.SIGHUP, "HUP")])
def test_a_job_goes_on_when_snakemake_alone_is_told_to_end(training, number, name):
    job = training.runs().job
    training.strikes()
    assert training.command.tell(number) != 0
    training.goes_on(f"{name} to snakemake alone", f"detached; job {job} goes on")


@pytest.mark.parametrize("fault", ["Ctrl-C in the terminal", "INT to snakemake alone"])
def test_an_interrupt_cancels_the_job(training, fault):
    job = training.runs().job
    training.strikes()
    if fault.startswith("INT"):
        training.command.process.send_signal(signal.SIGINT)
    else:
        os.killpg(training.command.process.pid, signal.SIGINT)
    training.ends(fault, f"cancelled job {job}; the same command resumes")


def test_a_job_that_someone_cancels_has_no_successor(training):
    job = training.runs().job
    training.cluster.run("scancel", job)
    assert f"job {job} was cancelled by root" in training.ends("`scancel` by someone else", "the same command resumes")


def test_a_requeued_job_goes_on(training):
    job = training.runs().job
    training.cluster.run("scontrol", "requeue", job)
    training.starts_again("`scontrol requeue`", "was requeued, and committed first (sft: asked to stop")
    assert training.job == job


def test_without_slurmdbd_a_requeued_job_goes_on(training):
    job = training.runs().job
    training.cluster.kill_daemon("slurmdbd")
    try:
        training.cluster.run("scontrol", "requeue", job)
        training.starts_again("slurmdbd is killed, and the job requeued meanwhile", "was requeued, and committed first")
    finally:
        training.cluster.script("up")
    assert training.job == job


def test_a_preempted_job_says_for_which_one(training):
    job = training.runs().job
    urgent = in_urgent(training, 15)  # longer than between two looks at the queue
    training.starts_again("preemption, PreemptMode=REQUEUE", f"has made room for job {urgent} (partition urgent)")
    assert training.job == job


def test_a_drained_node_is_no_lost_one(training):
    node = training.runs().nodes()[1]
    training.cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        training.goes_on("a node is drained while the job runs")
        assert node not in training.command.said()[training.said :]
    finally:
        training.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")


def test_after_the_crash_of_a_node_the_job_goes_on_elsewhere(training):
    node = training.runs().nodes()[1]
    training.cluster.script("kill-node", node)
    line = training.starts_again("a node crashes", "lost a node, which failed or does not answer")
    assert node in line and node not in training.nodes()
    training.cluster.script("start-node", node)


def test_a_node_that_freezes_is_named(training, frozen):
    node = training.runs().nodes()[1]
    frozen += training.cluster.processes(node)
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    line = training.starts_again("a node freezes", "lost a node, which failed or does not answer")
    assert node in line and node not in training.nodes()
    for process in frozen:
        process.send_signal(signal.SIGCONT)
    training.cluster.heal()


def test_while_slurmctld_is_gone_nothing_is_lost_and_nothing_submitted(training):
    job = training.runs().job
    training.cluster.kill_daemon("slurmctld")
    try:
        training.steps()
        training.sees("Slurm does not answer since", 60)
        training.command.kill()
        training.command, training.said = training.life.snakemake("sft"), 0
        training.sees("sft: re-attached", 60)
        training.sees("Slurm does not answer since", 60)
        training.life.wait_for(lambda: time.monotonic() - training.at > 30, "half a minute")
    finally:
        training.cluster.script("up")
    training.goes_on("slurmctld is killed for 30 s, and the waiter meanwhile", "Slurm answers again")
    assert training.reading()["started"] == training.before["started"]
    assert training.job == max(training.life.jobs("sft"), key=int) == job


def test_a_rank_that_is_killed_ends_the_job_at_once_and_is_named(training):
    node = training.runs().nodes()[1]
    training.life.rank("sft", 1).kill()
    line = training.ends("a rank is killed", "failed on rank 1")
    assert f"({node}, job" in line and "killed" in line


@pytest.mark.timeout(450)
def test_a_job_whose_time_is_up_goes_on_and_has_a_successor_when_it_could_not_commit(training, hook):
    training.runs("sft: {nodes: 2, minutes: 1}", "signal_seconds: 20", env=hook(DEAF))
    job = training.job
    told = training.sees("s are left, a step takes up to")
    committed = re.search(r"sft: (\d+) s are left, .* committed step (\d+)", told)
    assert int(committed[1]) > 5
    training.at, training.before = time.monotonic(), training.reading()
    training.starts_again("the time limit comes near", "s are left, a step takes up to")
    training.sees("was requeued, and committed first")
    assert training.job == job
    assert training.reading()["first"] == int(committed[2])

    training.strikes()
    training.sees("reached its time limit", 150)  # Slurm looks at limits every 30 s
    before = training.before = training.reading()
    training.at = time.monotonic() - (time.time() - before["time"])
    training.starts_again("the time limit strikes (no signal, no budget)", "reached its time limit")
    assert training.job != job


def test_where_preemption_cancels_a_job_it_has_a_successor(training):
    training.stop()
    with training.cluster.controller(*PARTITIONS):
        job = training.runs("sft: {nodes: 2, partition: cancelling}").job
        in_urgent(training, 5)
        training.starts_again("preemption, PreemptMode=CANCEL", f"job {job} was preempted by a job of higher priority")
        assert training.job != job
        training.stop()


def test_where_preemption_suspends_a_job_it_goes_on(training):
    training.stop()
    with training.cluster.controller(*PARTITIONS):
        job = training.runs("sft: {nodes: 2, partition: suspending}").job
        training.strikes()
        in_urgent(training, 5)
        training.sees(f"job {job} stands still: Slurm, or an administrator, has suspended it")
        training.before = training.reading()
        training.goes_on("preemption, PreemptMode=SUSPEND", "stands still")
        training.stop()
