"""How Slurm is asked, and what its answers are taken for."""

import re
from pathlib import Path

import pytest

from slurm.query.queue import ask

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


def test_every_command_of_slurm_is_asked_in_that_environment():
    calls = re.compile(rf"""(?:run|Popen|check_output)\(\s*\[\s*"(?:{NAMES})"[^)]*\)""")
    found = [
        f"{path.name}: {call}"
        for path in (ROOT / "slurm").rglob("*.py")
        for call in calls.findall(path.read_text())
        if "env=slurm_environment()" not in call
    ]
    assert found == []
