"""How a rank ended when it did not end well, for the one who waits at the terminal. Each rank writes its own file."""

import time
import traceback
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from checkpoints.manifest import write_json
from slurm.place import Place

Why = Literal["stopped", "mistake", "node", "error"]


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


def clear_verdicts(attempt: Path) -> None:
    """Remove the verdicts of an earlier job, of which there may have been more ranks."""
    for path in attempt.glob("verdict-*.json"):
        path.unlink(missing_ok=True)


def _path(attempt: Path, rank: int) -> Path:
    return attempt / f"verdict-{rank:04d}.json"


class BadNode(Exception):
    """Nodes that cannot do the job: they are avoided from now on, and the job starts elsewhere."""

    def __init__(self, nodes: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.nodes = nodes
