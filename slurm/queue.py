"""What Slurm says about jobs: squeue, sacct and scancel, and nothing made up when they do not answer."""

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from slurm.config import SlurmConfig
from slurm.record import Executor

TIMEOUT_SECONDS = 60
ABSENT = re.compile(r"Invalid job id", re.IGNORECASE)


class NoAnswer(Exception):
    """A query failed: the command is missing, timed out, or could not reach its daemon. It says nothing of the job."""


class SubmitError(Exception):
    """The submit failed, and this is what sbatch or the system said."""


@dataclass(frozen=True)
class Said:
    """State of a job, in Slurm's word for it, and the reason that is given."""

    state: str
    reason: str = ""


def is_here() -> bool:
    """Whether this machine is a client of a Slurm cluster, which may be out of order at the moment.

    The commands alone do not make it one: distributions install them without a cluster to talk to.
    """
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        return False
    if os.environ.get("SLURM_CONF") or Path("/etc/slurm/slurm.conf").exists():
        return True
    try:
        return bool(_ask("scontrol", "show", "config"))  # a cluster that hands out its configuration
    except NoAnswer:
        return False


def choose_executor(config: SlurmConfig) -> Executor:
    """The executor that the config names, or that this machine offers."""
    if config.executor != "auto":
        return config.executor
    return "slurm" if is_here() else "local"


def squeue(job_id: str) -> Said | None:
    """State of a job that slurmctld knows; None when it knows none of this id. Raises NoAnswer."""
    lines = _ask("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T|%r")
    if not lines:
        return None
    state, _, reason = lines[0].partition("|")
    return Said(state.strip(), "" if reason.strip() == "None" else reason.strip())


def sacct(job_id: str) -> Said | None:
    """Last state of a job in the accounting; None when it has none of this id. Raises NoAnswer."""
    lines = _ask("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job_id}", "--format=State,ExitCode")
    if not lines:
        return None
    state, _, code = lines[-1].partition("|")
    return Said(state.strip(), f"exit code {code}" if code.strip() not in ("", "0:0") else "")


def find_by_name(name: str, since: float) -> str | None:
    """Id of the job with this unique name, queued, running or ended after the Unix time `since`; None without one.

    Raises NoAnswer when squeue does not answer. Where there is no accounting, a job that squeue has forgotten is lost
    to this search; what it made is found on disk.
    """
    lines = _ask("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%A")
    if not lines:
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - 60))
        columns = ("--noheader", "--allocations", "--parsable2", "--format=JobIDRaw")
        try:
            lines = _ask("sacct", *columns, f"--name={name}", f"--starttime={start}")
        except NoAnswer:
            return None
    return lines[-1].strip() if lines else None


def scancel(job_id: str) -> None:
    """Ask Slurm to end a job. Raises NoAnswer when it could not be asked."""
    _ask("scancel", job_id)


def _ask(*command: str) -> list[str]:
    """Lines of a command's answer; none when Slurm says that there is no such job."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        if ABSENT.search(done.stderr):
            return []
        raise NoAnswer(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return [line for line in done.stdout.splitlines() if line.strip()]
