"""The cluster of these tests is a real one: nodes with names, accounting, requeue after a crash."""

import sys

import pytest

pytestmark = pytest.mark.cluster


def test_two_nodes_run_two_tasks_each_and_know_their_names(cluster):
    names = cluster.run("srun", "-N2", "--ntasks-per-node=2", "hostname").split()
    assert sorted(names) == ["mx0", "mx0", "mx1", "mx1"]


def test_accounting_keeps_how_a_job_ended(cluster):
    job = cluster.submit("exit 3")
    cluster.wait(job, "FAILED")
    assert cluster.run("sacct", "-n", "-X", "-P", "-j", job, "-o", "State,ExitCode") == "FAILED|3:0"


def test_a_job_whose_node_dies_starts_again_elsewhere(cluster, tmp_path):
    log = tmp_path / "log"
    job = cluster.submit("echo $SLURM_RESTART_COUNT $SLURMD_NODENAME; sleep 60", "-N1", "--requeue", f"--output={log}")
    cluster.wait(job, "RUNNING")
    (crashed,) = cluster.job_nodes(job)
    cluster.script("kill-node", crashed)
    cluster.wait(job, "PENDING", seconds=30)
    cluster.wait(job, "RUNNING", seconds=30)
    (now,) = cluster.job_nodes(job)
    assert now != crashed


RANK = """
import os, sys
from pathlib import Path
from data.job import Job
from stages.trainer.device import distributed, total
job = Job(
    rank=int(os.environ["SLURM_PROCID"]), world_size=int(os.environ["SLURM_NTASKS"]),
    node=os.environ["SLURMD_NODENAME"], rendezvous=Path(sys.argv[1]),
)
with distributed(job):
    print(*total(1.0, 10.0**job.rank))
"""


def test_four_ranks_on_two_nodes_add_up_over_gloo(cluster, tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    said = cluster.run("srun", "-N2", "--ntasks-per-node=2", sys.executable, script, tmp_path / "rendezvous")
    assert said.splitlines() == ["4.0 1111.0"] * 4
