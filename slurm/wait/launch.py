"""A job that got its nodes and does not start on them: which node is to blame."""

import re
from pathlib import Path

from slurm.attempt import last_start
from slurm.inside.roll_call import nodes_begun
from slurm.query.nodelist import expand
from slurm.verdict import is_everywhere

ERRORS = (
    re.compile(r"Task launch for StepId=\S+ failed on node (\S+?):? "),
    re.compile(r"error: Node failure on (\S+)"),
    re.compile(r"launch failed on node (\S+?):? "),
    re.compile(r"Unable to contact node (\S+)"),
    re.compile(r"srun: error: (\S+): tasks? \S+: (?:Exited with exit code (?:2|126|127|20[3-6])\b|unable to execve)"),
)
"""What srun and slurmstepd say of a node on which a step could not start: the last one, that Python is not there."""
PYTHON_FAILED = re.compile(r"srun: error: (\S+): tasks? \S+: Exited with exit code 1\b")


def blamed_by_srun(attempt: Path, job_id: str, restarts: int | None, nodes: str) -> dict[str, str]:
    """Of a job's nodes, those on which no rank has begun in its last start because srun could not, and what it said.

    Where ranks have begun elsewhere, also those on which Python ended before one could. None, where so many are named
    that the fault is everywhere.
    """
    lines = last_start(attempt, job_id)
    found = _named(lines, ERRORS)
    begun = nodes_begun(attempt, job_id, restarts) if found or any(map(PYTHON_FAILED.search, lines)) else set[str]()
    found |= _named(lines, (PYTHON_FAILED,)) if begun else {}
    blamed = {node: said for node, said in found.items() if node not in begun}
    return {} if is_everywhere(len(blamed), len(expand(nodes))) else blamed


def _named(lines: list[str], patterns: tuple[re.Pattern[str], ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        match = next(filter(None, (pattern.search(line) for pattern in patterns)), None)
        if match:
            found |= dict.fromkeys(expand(match[1]), line.strip())
    return found
