"""What Slurm says about jobs: squeue, sacct and scancel, and nothing made up when they do not answer."""

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from slurm.config import SlurmConfig
from slurm.query.environment import KEPT, slurm_environment
from slurm.record import Executor

TIMEOUT_SECONDS = 60
COLUMNS = "--Format=State:|,Reason:|,NodeList:|,RestartCnt:|,Name:|,Command:|"
BROKEN = ("down", "drain", "drng", "fail", "unk")
"""States of a node, in sinfo's short words, in which it takes no job; `*` says that it does not answer."""
CONFIGS = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))
"""The second one is what sackd and slurmd keep of a configuration that slurmctld hands out."""
NO_CLUSTER = re.compile(r"DNS SRV lookup failed|No such file or directory")
"""What Slurm's commands say where nothing names a cluster."""
ABSENT = re.compile(r"Invalid job id", re.IGNORECASE)


class NoAnswer(Exception):
    """A query failed: the command is missing, timed out, or could not reach its daemon. It says nothing of the job."""


class SubmitError(Exception):
    """The submit failed, and this is what sbatch or the system said."""


class QueueFull(SubmitError):
    """Slurm takes no job at the moment, or did not say whether it took it: to be tried again."""


FULL = re.compile(
    r"MaxSubmitJob|GrpSubmitJob|MaxJobCount|temporarily unable to accept|temporarily unavailable|timed out"
    r"|Unable to contact slurm controller|Zero Bytes were transmitted|Connection (refused|reset)|standby mode"
    r"|Batch job submission failed: Job violates accounting/QOS policy|not available \(inactive or drain\)",
    re.IGNORECASE,
)
"""What sbatch says when another time may do."""
PERMANENT = re.compile(
    r"\b(QOS|Assoc)(Max|Grp|Min)(?!\w*SubmitJob)\w+|\bInvalid (account|partition|qos|wckey)", re.IGNORECASE
)
"""A limit on the size or the time of one job, and names that Slurm does not know, whatever is said beside it."""


def submit_error(said: str) -> SubmitError:
    """The error for what sbatch said: one that passes, or one that stays."""
    words = said.partition("\nthis run avoids nodes")[0]
    passes = FULL.search(words) and not PERMANENT.search(said)
    return QueueFull(said) if passes else SubmitError(said)


@dataclass(frozen=True)
class Said:
    """State of a job, in Slurm's word for it, the reason that is given, and the job's nodes in Slurm's short form."""

    state: str
    reason: str = ""
    nodes: str = ""
    by: str = ""
    """squeue or sacct."""
    restarts: int | None = None
    """How often Slurm has started the job again; None when it was not said."""

    @property
    def word(self) -> str:
        """The state alone: `CANCELLED by 0` and `CANCELLED+` are one word."""
        return self.state.split()[0].rstrip("+")


def is_here() -> bool:
    """Whether this machine is a client of a Slurm cluster, which may be out of order at the moment.

    The commands alone do not make it one: distributions install them without a cluster to talk to. A cluster that
    hands out its configuration and does not answer is no reason to train here: NoAnswer.
    """
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        return False
    if any(os.environ.get(name) for name in KEPT) or any(path.exists() for path in CONFIGS):
        return True
    try:
        return bool(ask("scontrol", "show", "config"))
    except NoAnswer as error:
        if NO_CLUSTER.search(str(error)):
            return False
        raise NoAnswer(
            f"{error}\nso nobody can tell whether there is a cluster here; run again when Slurm answers, or set "
            "slurm.executor to local or slurm"
        ) from error


def choose_executor(config: SlurmConfig) -> Executor:
    """The executor that the config names, or that this machine offers."""
    if config.executor != "auto":
        return config.executor
    return "slurm" if is_here() else "local"


def squeue(job_id: str, name: str, attempt: str) -> Said | None:
    """State of a job that slurmctld knows; None when it knows none of this id, or another one. Raises NoAnswer.

    A person may have renamed ours, whose script lies in the folder of its attempt.
    """
    # --all: also jobs of hidden partitions, and those that another cluster of a federation runs.
    lines = ask("squeue", "--noheader", "--all", "--states=all", f"--jobs={job_id}", COLUMNS)
    if not lines:
        return None
    state, reason, nodes, restarts, rest = (part.strip() for part in f"{lines[0]}|||||".split("|", 4))
    if rest.strip("|") and not rest.startswith(f"{name}|") and f"/{attempt}/" not in rest:
        return None
    count = int(restarts) if restarts.isdigit() else None
    return Said(state, "" if reason == "None" else reason, nodes, "squeue", count)


def sacct(job_id: str, name: str) -> Said | None:
    """Last state of a job in the accounting; None when it has none of this id and name. Raises NoAnswer."""
    columns = ("--noheader", "--allocations", "--parsable2", "--format=State,ExitCode,JobName")
    lines = ask("sacct", *columns, f"--jobs={job_id}")
    if not lines:
        return None
    state, code, called = (part.strip() for part in f"{lines[-1]}||".split("|", 2))
    if called.strip("|") not in ("", name):
        return None
    return Said(state, f"exit code {code}" if code not in ("", "0:0") else "", by="sacct")


def last_start(job_id: str, since: float) -> Said | None:
    """How the start of a job ended that the accounting saw end last, after the Unix time `since`. Raises NoAnswer."""
    columns = ("--noheader", "--allocations", "--parsable2", "--duplicates", "--format=End,State,NodeList")
    found: list[tuple[str, Said]] = []
    for line in ask("sacct", *columns, f"--jobs={job_id}"):
        end, state, nodes = line.split("|")[:3]
        if end >= _slurm_time(since) and end != "Unknown":
            found.append((end, Said(state, nodes=nodes)))
    return max(found, key=lambda entry: entry[0])[1] if found else None


def _slurm_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def broken_nodes(nodes: str) -> dict[str, str]:
    """Those of `nodes` that cannot run a job, and what Slurm calls their state. Raises NoAnswer."""
    lines = ask("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N|%t")
    found = [line.strip().partition("|") for line in lines]
    return {node: state for node, _, state in found if state.endswith("*") or state.startswith(BROKEN)}


def runs_there_since(nodes: str, since: float) -> list[str]:
    """Jobs that run on one of `nodes` and started after the Unix time `since`: id and partition. Raises NoAnswer."""
    lines = ask("squeue", "--noheader", "--states=running", f"--nodelist={nodes}", "--format=%A (partition %P)|%S")
    found = [line.strip().partition("|") for line in lines]
    return [job for job, _, start in found if start >= _slurm_time(since)]


def is_known(job_id: str, seconds: float) -> bool:
    """Whether the queue or the accounting shows a job, whoever's it is. Raises NoAnswer."""
    queued = ask("squeue", "--noheader", "--all", "--states=all", f"--jobs={job_id}", "--format=%A", seconds=seconds)
    return bool(
        queued or ask("sacct", "--noheader", "--allocations", f"--jobs={job_id}", "--format=JobID", seconds=seconds)
    )


def find_by_name(name: str, since: float) -> str | None:
    """Id of our job with this unique name, queued, running or ended after the Unix time `since`; None without one.

    Raises NoAnswer when squeue does not answer. Where there is no accounting, a job that squeue has forgotten is lost
    to this search; what it made is found on disk.
    """
    return _newest(name, since, "%A", "JobIDRaw")


def find_array(name: str, since: float) -> str | None:
    """`find_by_name` for an array of jobs: the id that its tasks have in common."""
    return _newest(name, since, "%F", "JobID")


def _newest(name: str, since: float, queued: str, accounted: str) -> str | None:
    """The highest id among our jobs of this name: squeue's field `queued`, or sacct's `accounted`."""
    ours = (f"--name={name}", f"--user={os.getuid()}")
    lines = ask("squeue", "--noheader", "--all", "--states=all", *ours, f"--format={queued}")
    if not lines:
        columns = ("--noheader", "--allocations", "--parsable2", f"--format={accounted}")
        try:
            lines = ask("sacct", *columns, *ours, f"--starttime={_slurm_time(since - 60)}")
        except NoAnswer:
            return None
    return str(max(int(line.split("_")[0]) for line in lines)) if lines else None


def array_tasks(array_id: str, name: str) -> list[tuple[str, Said]]:
    """The tasks of an array that slurmctld knows, by the id that scancel takes, such as 123_4. Raises NoAnswer."""
    columns = "--Format=ArrayJobID:|,ArrayTaskID:|,State:|,Reason:|,NodeList:|,Name:|"
    found: list[tuple[str, Said]] = []
    for line in ask("squeue", "--noheader", "--all", "--array", "--states=all", f"--jobs={array_id}", columns):
        array, task, state, reason, nodes, called = (part.strip() for part in f"{line}||||||".split("|")[:6])
        if called == name:
            job = f"{array}_{task}" if task.isdigit() else array
            found.append((job, Said(state, "" if reason == "None" else reason, nodes, "squeue")))
    return found


def scancel(job_id: str) -> None:
    """Ask Slurm to end a job. Raises NoAnswer when it could not be asked."""
    ask("scancel", job_id)


def requeue(job_id: str) -> None:
    """Ask Slurm to end a job and to start it again. Raises NoAnswer when it could not be asked, or refuses."""
    ask("scontrol", "requeue", job_id)


def end_time(job_id: str, seconds: float) -> float | None:
    """Unix time at which Slurm will end a job; None when it does not say so within `seconds`."""
    try:
        lines = ask("scontrol", "show", "job", "--oneliner", job_id, seconds=seconds)
    except NoAnswer:
        return None
    found = [word.removeprefix("EndTime=") for line in lines for word in line.split() if word.startswith("EndTime=")]
    end = next(iter(found), "Unknown")
    return None if end == "Unknown" else time.mktime(time.strptime(end, "%Y-%m-%dT%H:%M:%S"))


def ask(*command: str, seconds: float = TIMEOUT_SECONDS) -> list[str]:
    """Lines of a command's answer; none when Slurm says that there is no such job. Raises NoAnswer."""
    try:
        done = subprocess.run(
            command, env=slurm_environment(), capture_output=True, text=True, timeout=seconds, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        if ABSENT.search(done.stderr):
            return []
        raise NoAnswer(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return [line for line in done.stdout.splitlines() if line.strip()]
