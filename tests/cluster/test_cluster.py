"""The cluster of these tests is a real one: nodes with names, accounting, a network."""

import sys

import pytest

from tests.cluster.conftest import wait_for

pytestmark = pytest.mark.cluster


def test_two_nodes_run_two_tasks_each_and_know_their_names(cluster):
    names = cluster.run("srun", "-N2", "--ntasks-per-node=2", "hostname").split()
    assert sorted(names) == ["mx0", "mx0", "mx1", "mx1"]


def test_accounting_keeps_how_a_job_ended(cluster):
    job = cluster.submit("exit 3")
    cluster.wait(job, "FAILED")
    kept = ("sacct", "-n", "-X", "-P", "-j", job, "-o", "State,ExitCode")
    wait_for(lambda: cluster.run(*kept) == "FAILED|3:0", "the accounting has it")


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
