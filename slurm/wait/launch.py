"""A job that got its nodes and does not start on them: which node is to blame."""

import re
from pathlib import Path

from slurm.attempt import LOGS
from slurm.query import queue
from slurm.query.nodelist import expand
from slurm.query.queue import NoAnswer

ERRORS = (
    re.compile(r"Task launch for StepId=\S+ failed on node (\S+?):? "),
    re.compile(r"error: Node failure on (\S+)"),
    re.compile(r"launch failed on node (\S+?):? "),
    re.compile(r"Unable to contact node (\S+)"),
    re.compile(r"srun: error: (\S+): tasks? \S+: (?:Exited with exit code 2(?:0[3-6])|unable to execve)"),
)
"""What srun and slurmstepd say of a node on which a step could not start."""
READ_BYTES = 65536


def blamed_by_srun(attempt: Path, job_id: str) -> dict[str, str]:
    """Nodes on which srun could not start a step of the job, and what it said, from the log of the batch script."""
    found: dict[str, str] = {}
    for path in (attempt / LOGS).glob(f"{job_id}*_log.*"):
        if not re.fullmatch(rf"{job_id}(_0)?_log\.(out|err)", path.name):
            continue
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - READ_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
        for line in lines:
            match = next(filter(None, (pattern.search(line) for pattern in ERRORS)), None)
            if match:
                found |= dict.fromkeys(expand(match[1]), line.strip())
    return found


def blamed_for_silence(nodes: str) -> tuple[str, ...]:
    """Of the nodes of a job of which no rank has started: those that Slurm calls broken, or the first one.

    The batch script runs on the first node, and starts all ranks from there.
    """
    try:
        broken = tuple(queue.broken_nodes(nodes))
    except NoAnswer:
        broken = ()
    return broken or tuple(expand(nodes)[:1])
