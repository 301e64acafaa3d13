"""How a rank ended when it did not end well, for the one who waits at the terminal. Each rank writes its own file."""

import re
import time
import traceback
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from checkpoints.manifest import write_json
from slurm.attempt import LOGS, last_start
from slurm.inside.place import Place
from slurm.query.nodelist import expand

Why = Literal["stopped", "mistake", "node", "error"]
KILLED = {
    "Killed": "was killed: by a person, or by the kernel when its node was out of memory",
    "Out Of Memory": "was killed because it was out of the memory that Slurm gave the job",
}
"""What srun's words for the end of a task mean; it has many more, for the other signals."""
LOST_PEER = re.compile(
    r"Connection (reset|closed|refused)|Broken pipe|DistNetworkError|DistBackendError|remote process exited"
    r"|remote error|Socket [Tt]imeout|recvValue failed",
)
"""In an error that says that another rank is gone, as when its node has crashed."""

SHARE = 8
"""What fails on more than one node, and on more than one in so many, is no node's fault."""


class Verdict(BaseModel):
    """How one rank ended.

    `mistake` is the user's (ValueError), `node` blames `nodes`, which the next job avoids, `error` is anything else,
    `stopped` committed its progress first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    why: Why
    message: str
    rank: int
    node: str
    job_id: str
    time: float
    traceback: str
    """For those who mend Qianka; the terminal shows the message."""
    nodes: tuple[str, ...] = ()
    """Those that are to blame."""

    @classmethod
    def of(cls, why: Why, message: str, place: Place, nodes: tuple[str, ...] = ()) -> "Verdict":
        """The verdict of this rank on the exception that is being handled."""
        return cls(
            why=why,
            message=message,
            rank=place.rank,
            node=place.node,
            job_id=place.job_id,
            time=time.time(),
            traceback=traceback.format_exc(),
            nodes=nodes,
        )


def write_verdict(attempt: Path, verdict: Verdict, writer: int | None = None) -> None:
    """Commit the verdict of a rank, or of the rank `writer` on another. On a full disk there is only the log."""
    try:
        write_json(_path(attempt, verdict.rank if writer is None else writer), verdict.model_dump())
    except OSError as error:
        print(f"the verdict is not on disk: {error}", flush=True)


def clear_verdict(attempt: Path, rank: int) -> None:
    """Remove what this rank said at an earlier start."""
    _path(attempt, rank).unlink(missing_ok=True)


def read_verdict(attempt: Path) -> Verdict | None:
    """The one that explains the end: a mistake, then a bad node, an error, a stop; of equals the earliest.

    When one rank fails, the others fail soon after because it is gone.
    """
    order = ("mistake", "node", "error", "stopped")
    found = [Verdict.model_validate_json(path.read_bytes()) for path in attempt.glob("verdict-*.json")]
    return min(found, key=lambda verdict: (order.index(verdict.why), verdict.time), default=None)


def explain(attempt: Path, job_id: str | None) -> Verdict | None:
    """Why the job ended, for a person: the verdict, or a rank that was killed, which srun tells because it cannot."""
    said = read_verdict(attempt)
    if job_id is None or (said and said.why in ("mistake", "node")):
        return said
    return _killed(attempt, job_id) or said or _stuck(attempt, job_id)


def lost_peer(verdict: Verdict | None) -> bool:
    """Whether it says no more than that another rank is gone."""
    return verdict is not None and verdict.why == "error" and bool(LOST_PEER.search(verdict.message))


def _killed(attempt: Path, job_id: str) -> Verdict | None:
    """The rank that a signal ended before anyone had ended the last start of the job, from the log of srun."""
    for line in last_start(attempt, job_id):
        found = re.match(r"srun: error: (\S+): tasks? (\d+)\S*: (.+)", line)
        if re.match(r"(slurmstepd|srun).*: error: \*\*\* ", line) or (found and found[3].startswith("Exited")):
            return None
        if found:
            node, rank = expand(found[1])[0], int(found[2])
            message = f"rank {rank} on {node} {KILLED.get(found[3], f'was ended by a signal: {found[3]}')}"
            return Verdict(
                why="error", message=message, rank=rank, node=node, job_id=job_id, time=time.time(), traceback=""
            )
    return None


def _stuck(attempt: Path, job_id: str) -> Verdict | None:
    """The rank that only the timer of `slurm.inside.watchdog` could end: it has left stacks, and no verdict."""
    for path in sorted((attempt / LOGS).glob(f"{job_id}_*_stacks.txt")):
        if path.stat().st_size:
            rank = int(path.stem.split("_")[-2])
            message = f"rank {rank} hung in a call that never came back to Python; its stacks: {path}"
            return Verdict(
                why="error",
                message=message,
                rank=rank,
                node="unknown node",
                job_id=job_id,
                time=time.time(),
                traceback="",
            )
    return None


def clear_verdicts(attempt: Path) -> None:
    """Remove the verdicts of an earlier job, of which there may have been more ranks."""
    for path in attempt.glob("verdict-*.json"):
        path.unlink(missing_ok=True)


def _path(attempt: Path, rank: int) -> Path:
    return attempt / f"verdict-{rank:04d}.json"


def is_everywhere(nodes: int, of: int) -> bool:
    """Whether what so many nodes of a job have at once is no fault of theirs."""
    return nodes > max(1, of // SHARE)


class BadNode(Exception):
    """Nodes that cannot do the job: they are avoided from now on, and the job starts elsewhere."""

    def __init__(self, nodes: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.nodes = nodes
