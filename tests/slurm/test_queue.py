"""How Slurm is asked, and what its answers are taken for."""

import os
import re
from pathlib import Path

import pytest

from slurm.config import SlurmConfig
from slurm.query.queue import NoAnswer, ask, choose_executor

ROOT = Path(__file__).parents[2]
NAMES = "sbatch|squeue|sacct|scancel|scontrol|sinfo|srun|salloc|sacctmgr"


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make a command of Slurm from a line of shell."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return write


def test_what_a_user_has_set_for_slurms_commands_changes_no_answer(command, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/of/this/cluster")
    for name in ("SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SQUEUE_PARTITION", "SACCT_FEDERATION", "SCANCEL_STATE"):
        monkeypatch.setenv(name, "x")
    command("squeue", "env | grep -E '^S(LURM|QUEUE|ACCT|CANCEL)'")
    assert ask("squeue") == ["SLURM_CONF=/of/this/cluster"]


NO_CLUSTER = """echo 'scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
scontrol: error: fetch_config: DNS SRV lookup failed
scontrol: error: _establish_config_source: failed to fetch config
scontrol: fatal: Could not establish a configuration source' >&2; exit 1"""
OUTAGE = """echo 'scontrol: error: _fetch_child: failed to fetch remote configs: Unable to contact slurm controller
scontrol: error: _establish_config_source: failed to fetch config
scontrol: fatal: Could not establish a configuration source' >&2; exit 1"""


def test_a_cluster_that_is_out_of_order_does_not_make_this_machine_the_place_to_train(command, monkeypatch):
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr("slurm.query.queue.CONFIGS", ())
    monkeypatch.setenv("PATH", os.environ["PATH"].split(":")[0] + ":/nowhere")
    command("sbatch", "exit 1")
    command("scontrol", NO_CLUSTER)
    assert choose_executor(SlurmConfig()) == "local", "there is no srun"
    command("srun", "exit 1")
    assert choose_executor(SlurmConfig()) == "local", "a distribution's commands without a cluster"
    command("scontrol", "echo SlurmctldHost = a")
    assert choose_executor(SlurmConfig()) == "slurm"
    command("scontrol", OUTAGE)
    with pytest.raises(NoAnswer, match=r"(?s)Unable to contact.*set slurm\.executor to local or slurm"):
        choose_executor(SlurmConfig())
    assert choose_executor(SlurmConfig(executor="local")) == "local"


def test_every_command_of_slurm_is_asked_in_that_environment():
    calls = re.compile(rf"""(?:run|Popen|check_output)\(\s*\[\s*"(?:{NAMES})"[^)]*\)""")
    found = [
        f"{path.name}: {call}"
        for path in (ROOT / "slurm").rglob("*.py")
        for call in calls.findall(path.read_text())
        if "env=slurm_environment()" not in call
    ]
    assert found == []
