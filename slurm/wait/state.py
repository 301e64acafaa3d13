"""Whether an attempt's job lives: squeue, then sacct, then the disk; for a local job, its processes.

A query that fails is not an answer, and a job that Slurm will start again has not ended.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from slurm.query import queue
from slurm.query.queue import NoAnswer, Said
from slurm.query.words import state_words
from slurm.record import Record, is_finished
from slurm.wait import local


class Kind(Enum):
    """What can be said of a job."""

    ACTIVE = "active"
    """Waiting, running, or about to do either."""
    RETURNING = "returning"
    """Ended by the cluster, which will start it again; within a bound that the waiter keeps."""
    ENDED = "ended"
    """Over, or known to nobody that was asked."""
    FINISHED = "finished"
    """Its manifest is there, whatever anyone says of the job."""
    UNKNOWN = "unknown"
    """Nobody that could know has answered."""


@dataclass(frozen=True)
class State:
    """The kind, and the words in which it is told."""

    kind: Kind
    text: str
    said: Said | None = None
    """Slurm's own words."""
    silent: bool = False
    """squeue did not answer."""

    @property
    def word(self) -> str:
        """Slurm's word for the state, or nothing."""
        return self.said.word if self.said else ""

    @property
    def is_running(self) -> bool:
        """Whether ranks may be at work."""
        return self.word == "RUNNING" if self.said else self.kind is Kind.ACTIVE


ACTIVE = {
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"),
    *("SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED", "REQUEUE_HOLD", "REVOKED"),
}
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"}
RETURNING = {"REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"}


def query(folder: Path, record: Record) -> State:
    """State of the job of `record` in the stage folder `folder`."""
    attempt = folder / record.attempt
    if is_finished(attempt):
        return State(Kind.FINISHED, "finished")
    if record.executor == "slurm":
        return slurm_state(record)
    return local_state(attempt, record)


def local_state(attempt: Path, record: Record) -> State:
    """Raises ValueError when the job runs, or ran, on another machine."""
    if record.host != os.uname().nodename:
        raise ValueError(
            f"{attempt.parent}: a local job of this stage was started on {record.host}, and this is "
            f"{os.uname().nodename}. Go on there; or, if nothing of it runs any more, delete "
            f"{attempt.parent / 'record.json'} and run again: it resumes from its checkpoints"
        )
    process = local.find(attempt, record.job_id)
    if process:
        return State(Kind.ACTIVE, "running")
    return State(Kind.FINISHED, "finished") if is_finished(attempt) else State(Kind.ENDED, "its processes are gone")


def slurm_state(record: Record) -> State:
    """Ask squeue, and sacct where squeue knows nothing (more), or where sacct knows better how a job ended."""
    if record.job_id is None:
        return State(Kind.ENDED, "was never submitted")
    queued, absent = None, False
    try:
        queued = queue.squeue(record.job_id)
        if queued and queued.word not in ENDED:
            return classify(queued)
        absent, trouble = True, "is not in the queue any more"
    except NoAnswer as error:
        trouble = str(error)
    try:
        said = queue.sacct(record.job_id)
        if said and (queued is None or said.word == queued.word):
            return classify(said, silent=not absent)
    except NoAnswer as error:
        trouble = trouble if absent else f"{trouble}; {error}"
    if queued:
        return classify(queued)
    return State(Kind.ENDED if absent else Kind.UNKNOWN, trouble, silent=not absent)


def classify(said: Said, silent: bool = False) -> State:
    """What Slurm's word for a state means to someone who waits."""
    text = state_words(said.state, said.reason, said.nodes)
    kind = Kind.ACTIVE if said.word in ACTIVE else Kind.RETURNING if said.word in RETURNING else Kind.ENDED
    return State(kind, text, said, silent)


def cancel(folder: Path, record: Record, hurry: Callable[[], bool] = lambda: False) -> None:
    """End the job of a record; nothing happens when it has ended. Raises NoAnswer when Slurm could not be asked.

    A local job has time to commit, unless the caller is in a hurry; Slurm gives its own grace.
    """
    if record.executor == "local":
        local.cancel(folder / record.attempt, hurry)
    elif record.job_id is not None:
        queue.scancel(record.job_id)
