"""What goes wrong on a cluster, done to a real one: the stage goes on from the committed step, and a line says why."""

import os
import re
import signal
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from data.progress import read_progress
from slurm.exclusions import exclude

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

LONG = ("sft.steps=100000", "sft.checkpoint.every_steps=10", "sft.validate_every_steps=1000")


class Sft:
    """An endless sft stage on two nodes, and the command that waits for it."""

    def __init__(self, life) -> None:
        self.life, self.cluster = life, life.cluster
        assert life.qianka("stage", "synth", "tiny.yaml", *LONG).ends() == 0
        life.settings("sft: {nodes: 2}")
        self.command = life.qianka("stage", "sft", "tiny.yaml", *LONG)
        self.command.sees("steps/s")
        self.life.wait_for(lambda: self.done() >= 25, "25 steps")
        self.job = life.job("sft")

    def reading(self) -> dict:
        record = self.life.record("sft")
        return read_progress(self.life.stage("sft") / record.attempt) or {"done": 0, "started": 0}

    def done(self) -> int:
        return int(self.reading()["done"])

    def goes_on(self) -> str:
        """Wait until another start goes on from a committed step; return what was said of the fault."""
        self.command.sees(" steps are done again", 120)
        said = self.command.said()
        first = int(re.search(r"goes on from (\d+) of 100000 steps; \d+ steps are done again", said)[1])
        assert first >= 20
        assert self.reading()["first"] == first
        line = next(line for line in said.splitlines() if f"job {self.job} " in line and "Slurm starts" in line)
        assert self.life.jobs("sft") == [self.job]
        return line


@pytest.fixture
def sft(life) -> Sft:
    return Sft(life)


def of_node(cluster, node: str) -> list[psutil.Process]:
    """The processes of a node of the cluster."""
    root = Path(os.environ["SLURM_CONF"]).parents[1]
    first = psutil.Process(int((root / f"run/node-{node}.pid").read_text()))
    return [first, *first.children(recursive=True)]


@pytest.fixture
def frozen() -> Generator[list[psutil.Process]]:
    """Processes that the test has stopped; they go on after it."""
    found: list[psutil.Process] = []
    yield found
    for process in found:
        if process.is_running():
            process.send_signal(signal.SIGCONT)


def test_a_job_that_is_preempted_says_for_which_one(sft):
    """The loss of a node and a requeue are in test_stages.py."""
    urgent = sft.cluster.submit("sleep 15", "--partition=urgent", "--nodes=4", "--exclusive")
    sft.command.sees(f"sft: job {sft.job} has made room for job {urgent} (partition urgent)")
    assert "was requeued, and committed first (sft: asked to stop" in sft.goes_on()


def test_a_node_that_freezes_is_named(sft, frozen):
    frozen += of_node(sft.cluster, sft.cluster.job_nodes(sft.job)[1])
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    assert "lost a node, which failed or does not answer: mx1" in sft.goes_on()


def test_while_slurmctld_is_gone_the_log_goes_on_and_a_line_says_so(sft):
    root = Path(os.environ["SLURM_CONF"]).parents[1]
    os.kill(int((root / "run/slurmctld.pid").read_text()), signal.SIGKILL)
    try:
        sft.command.sees("Slurm does not answer since", 60)
        shown = sft.command.said().count("steps/s")
        sft.life.wait_for(lambda: sft.command.said().count("steps/s") > shown, "progress without slurmctld", 30)
    finally:
        sft.cluster.script("up")
    sft.command.sees("Slurm answers again", 90)
    before = sft.done()
    sft.life.wait_for(lambda: sft.done() > before, "more steps")
    assert sft.reading()["first"] == 0, "it was started again"


def test_a_job_that_waits_says_for_what_and_ends_when_it_waits_for_nothing(life):
    for node in life.cluster.nodes():
        life.cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        drained = life.qianka("stage", "synth", "tiny.yaml")
        drained.sees("waits in the queue: nodes that it could have are down, drained or reserved")
    finally:
        for node in life.cluster.nodes():
            life.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
    assert drained.ends() == 0, drained.said()

    failed = life.cluster.submit("exit 1")
    life.cluster.wait(failed, "FAILED")
    life.settings(f"dependency: 'afterok:{failed}'")
    hopeless = life.qianka("stage", "sft", "tiny.yaml")
    assert hopeless.ends(60) == 1
    assert "the job that it depends on has failed, so that it can never start; take" in hopeless.said()
    assert not life.cluster.mine()


def test_without_accounting_stages_end_as_ever(life, tmp_path):
    conf = Path(os.environ["SLURM_CONF"]).read_text()
    without = tmp_path / "etc/slurm.conf"
    without.parent.mkdir()
    lines = [line for line in conf.splitlines() if not line.startswith("Accounting")]
    without.write_text("\n".join([*lines, "AccountingStorageType=accounting_storage/none"]))
    for file in ("cgroup.conf", "gres.conf", "topology.conf"):
        (without.parent / file).write_text((Path(os.environ["SLURM_CONF"]).parent / file).read_text())
    env = {"SLURM_CONF": str(without)}
    first = life.qianka("stage", "synth", "tiny.yaml", env=env)
    assert first.ends() == 0, first.said()
    again = life.qianka("stage", "sft", "tiny.yaml", env=env)
    assert again.ends() == 0, again.said()


def test_a_submit_that_slurm_does_not_take_is_repeated_until_it_does(life):
    life.settings("additional: {begin: now+1hour}")
    root = Path(os.environ["SLURM_CONF"]).parents[1]
    os.kill(int((root / "run/slurmctld.pid").read_text()), signal.SIGKILL)
    try:
        command = life.qianka("stage", "synth", "tiny.yaml")
        command.sees("synth: Slurm takes no job now, so it is asked again every 10 s", 120)
    finally:
        life.cluster.script("up")
    command.sees("waits in the queue: its", 60)
    assert life.jobs("synth") == [life.job("synth")]
    assert command.tell(signal.SIGINT) == 130


def test_a_bad_node_is_named_and_the_next_job_avoids_it(life):
    """A node on which the run failed before, but which was not avoided yet when the job was submitted."""
    life.settings("additional: {begin: now+1hour}")
    command = life.qianka("stage", "synth", "tiny.yaml")
    command.sees("waits in the queue: its")
    first = life.job("synth")
    exclude(life.folder / "runs/tiny", ["mx0"], "a card fell off", 1)
    life.release(first)
    command.sees("synth: mx0 failed: this run avoids mx0 until ")
    life.wait_for(lambda: life.job("synth") != first, "another job")
    second = life.job("synth")
    assert "ExcNodeList=mx0" in life.cluster.run("scontrol", "show", "job", second)
    life.release(second)
    assert command.ends() == 0, command.said()
    assert life.jobs("synth") == [first, second]
