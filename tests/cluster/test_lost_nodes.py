"""Nodes that are gone before Slurm knows, that miss the shared file system, or that have nothing to do with it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import pytest

from slurm.exclusions import excluded

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

LONG = ("sft.steps=100000", "sft.checkpoint.every_steps=10", "sft.validate_every_steps=1000")
TWO_NODES = ("sft: {nodes: 2}", "watch: {start_minutes: 0.2}")


@pytest.fixture
def late(cluster) -> Generator[None]:
    """A Slurm that notices late, as real ones do, that a node is gone, while srun soon ends a step that lost a rank."""
    conf = Path(os.environ["SLURM_CONF"])
    before = conf.read_text()
    changed = re.sub("^SlurmdTimeout=.*$", "SlurmdTimeout=15", before, flags=re.MULTILINE)
    conf.write_text(re.sub("^WaitTime=.*$", "WaitTime=2", changed, flags=re.MULTILINE))
    cluster.run("scontrol", "reconfigure")
    yield
    conf.write_text(before)
    cluster.run("scontrol", "reconfigure")


def test_a_crash_that_slurm_notices_after_the_job_has_failed_of_it(life, late):
    assert life.qianka("stage", "synth", "tiny.yaml", *LONG).ends() == 0
    life.settings("sft: {nodes: 2}")
    command = life.qianka("stage", "sft", "tiny.yaml", *LONG)
    command.sees("steps/s")
    first = life.job("sft")
    attempt = life.stage("sft") / life.record("sft").attempt
    life.wait_for(lambda: list(attempt.glob("checkpoints/step-*")), "a committed step")
    node = life.cluster.job_nodes(first)[1]
    life.cluster.script("kill-node", node)
    command.sees(f"job {first} lost a node, which failed or does not answer: {node} (", 90)
    command.sees(" steps are done again")
    second = life.job("sft")
    assert second != first and node not in life.cluster.job_nodes(second)
    assert not excluded(life.folder / "runs/tiny"), "Slurm avoids it by itself"


@pytest.fixture
def without(cluster) -> Generator[Callable[[str, Path], None]]:
    """`without(node, folder)` has a node see nothing in a folder, as if the file system were not mounted there."""
    undo: list[list[str]] = []

    def cover(node: str, folder: Path) -> None:
        outside = psutil.Process(int((Path(os.environ["SLURM_CONF"]).parents[1] / f"run/node-{node}.pid").read_text()))
        inside = ["nsenter", "--mount", "--pid", f"--target={outside.children()[0].pid}"]
        subprocess.run([*inside, "mount", "-t", "tmpfs", "none", folder], check=True)
        undo.append([*inside, "umount", "--lazy", str(folder)])

    yield cover
    for command in undo:
        subprocess.run(command, check=True)


@pytest.mark.parametrize(
    ("node", "what", "words"),
    [
        ("mx0", "run", "could not open its log on its first node, mx0; another job tries it without mx0"),
        ("mx1", "run", "rank 1 on node mx1 did not start within 0.2 minutes"),
        ("mx1", "python", "node mx1: srun: error: mx1: task 1: Exited with exit code 2; it is avoided from now on"),
    ],
)
def test_a_node_without_the_shared_file_system_is_named_and_avoided(life, without, node, what, words):
    assert life.qianka("stage", "synth", "tiny.yaml").ends() == 0
    life.settings(*TWO_NODES)
    without(node, life.folder if what == "run" else Path(sys.prefix))
    command = life.qianka("stage", "sft", "tiny.yaml")
    assert command.ends(150) == 0, command.said()
    assert words in command.said()
    assert list(excluded(life.folder / "runs/tiny")) == [node]
    assert len(life.jobs("sft")) == 2


def test_a_line_of_the_setup_that_hangs_is_no_nodes_fault(life):
    life.settings("setup: [sleep 600]", "watch: {start_minutes: 0.1}")
    command = life.qianka("stage", "synth", "tiny.yaml")
    assert command.ends(150) == 1
    first, second = life.jobs("synth")
    silent = r"started no rank on mx\d within 0\.1 minutes \(slurm\.watch\.start_minutes\); does a line of slurm\.setup"
    assert re.search(rf"job {first} {silent} hang\?; and job {second} as well", command.said()), command.said()
    assert not excluded(life.folder / "runs/tiny")
