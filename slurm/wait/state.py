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
    """Ask squeue, which is slurmctld, and for what it does not say sacct, which is slurmdbd.

    | squeue              | sacct               | the job is                                         |
    |---------------------|---------------------|----------------------------------------------------|
    | active, returning   | is not asked        | what squeue says                                   |
    | a new word          | is not asked        | active: one that is over is forgotten soon         |
    | ended               | has the same word   | ended, in the words of sacct, with its exit code   |
    | ended               | says anything else  | ended, in the words of squeue                      |
    | "no such job"       | how it ended        | ended; NODE_FAIL too: one that returns is pending  |
    | "no such job"       | anything else       | ended: slurmctld has lost it, or slurmdbd is late  |
    | does not answer     | ended               | ended                                              |
    | does not answer     | active, returning   | what sacct says                                    |
    | does not answer     | a new word, nothing | unknown                                            |

    slurmctld alone knows whether a job lives. It answers a submit when it has the job, and after a restart no question
    before it has read back its jobs. One that it has lost will never end in the accounting, and its ranks are ended by
    slurmd. A job of another name is somebody else's: a cluster that was set up anew counts from 1 again.
    """
    if record.job_id is None:
        return State(Kind.ENDED, "was never submitted")
    try:
        queued = queue.squeue(record.job_id, record.job_name, record.attempt)
    except NoAnswer as error:
        return _by_accounting(record.job_id, record.job_name, str(error))
    if queued and queued.word not in ENDED:
        return _told(queued, Kind.RETURNING if queued.word in RETURNING else Kind.ACTIVE)
    try:
        said = queue.sacct(record.job_id, record.job_name)
    except NoAnswer:
        said = None
    if queued:
        return _told(said if said and said.word == queued.word else queued, Kind.ENDED)
    if said and said.word in (ENDED | RETURNING) - {"REQUEUED"}:
        return _told(said, Kind.ENDED)
    return State(Kind.ENDED, "is not in the queue any more")


def _by_accounting(job_id: str, name: str, trouble: str) -> State:
    """The state of a job while squeue gives no answer."""
    try:
        said = queue.sacct(job_id, name)
    except NoAnswer as error:
        return State(Kind.UNKNOWN, f"{trouble}; {error}", silent=True)
    for kind, words in ((Kind.ACTIVE, ACTIVE), (Kind.RETURNING, RETURNING), (Kind.ENDED, ENDED)):
        if said and said.word in words:
            return _told(said, kind, silent=True)
    return State(Kind.UNKNOWN, trouble, silent=True)


def _told(said: Said, kind: Kind, silent: bool = False) -> State:
    return State(kind, state_words(said.state, said.reason, said.nodes), said, silent)


def cancel(folder: Path, record: Record, hurry: Callable[[], bool] = lambda: False) -> None:
    """End the job of a record; nothing happens when it has ended. Raises NoAnswer when Slurm could not be asked.

    A local job has time to commit, unless the caller is in a hurry; Slurm gives its own grace.
    """
    if record.executor == "local":
        local.cancel(folder / record.attempt, hurry)
    elif record.job_id is not None:
        queue.scancel(record.job_id)
