"""A job that got its nodes and does not start on them: which node is to blame."""

import contextlib
import re
from pathlib import Path

from slurm.attempt import last_start
from slurm.inside.roll_call import has_begun, last_begun, nodes_begun
from slurm.query import queue
from slurm.query.nodelist import expand
from slurm.query.queue import NoAnswer
from slurm.record import Record
from slurm.verdict import is_everywhere
from slurm.wait.state import State

ERRORS = (
    re.compile(r"Task launch for StepId=\S+ failed on node (\S+?):? "),
    re.compile(r"error: Node failure on (\S+)"),
    re.compile(r"launch failed on node (\S+?):? "),
    re.compile(r"Unable to contact node (\S+)"),
    re.compile(r"srun: error: (\S+): tasks? \S+: (?:Exited with exit code (?:2|126|127|20[3-6])\b|unable to execve)"),
)
"""What srun and slurmstepd say of a node on which a step could not start: the last one, that Python is not there."""
PYTHON_FAILED = re.compile(r"srun: error: (\S+): tasks? \S+: Exited with exit code 1\b")
LAUNCHES = 5
"""So often in a row Slurm may start a job without a rank that begins. It does so for ever, and says nothing."""
LAG_SECONDS = 60.0
"""Between the clock of this machine and Slurm's."""


class Launch:
    """The last start of a job: where it is, and whether ranks of it have begun."""

    def __init__(self, attempt: Path, record: Record) -> None:
        self.attempt, self.record = attempt, record
        self.nodes = ""
        self.restarts: int | None = None

    def note(self, found: State) -> bool:
        """Take in what was said of the job; whether it is another start than the last one that was said."""
        said = found.said
        if said is None:
            return False
        self.nodes = said.nodes or self.nodes
        before, self.restarts = self.restarts, self.restarts if said.restarts is None else said.restarts
        return before != self.restarts

    def has_begun(self) -> bool:
        """Whether a rank has."""
        return self.record.job_id is not None and has_begun(self.attempt, self.record.job_id, self.restarts)

    def in_vain(self) -> bool:
        """Whether Slurm has started the job too often without a rank that began."""
        job_id, restarts = self.record.job_id, self.restarts or 0
        return job_id is not None and restarts >= LAUNCHES and restarts - last_begun(self.attempt, job_id) > LAUNCHES

    def blamed(self) -> dict[str, str]:
        """Nodes on which srun could not start a rank, and what it said."""
        if self.record.job_id is None or self.record.executor == "local":
            return {}
        return blamed_by_srun(self.attempt, self.record.job_id, self.restarts, self.nodes)

    def find_nodes(self) -> str:
        """The job's nodes; of one that nobody here has seen running, the accounting knows them too."""
        if not self.nodes and self.record.job_id:
            with contextlib.suppress(NoAnswer):
                said = queue.last_start(self.record.job_id, self.record.submitted - LAG_SECONDS)
                self.nodes = said.nodes if said else ""
        return self.nodes

    def first_node(self) -> str:
        """Where the batch script ran, or nothing."""
        return next(iter(expand(self.find_nodes())), "")


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
