"""Wait for an attempt's job: show its log and progress, publish its result, and take Ctrl-C for what it is.

SIGINT cancels the job. SIGTERM and SIGHUP detach: the job goes on, and the same command finds it again.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum
from types import FrameType

import psutil

from data.progress import read_progress
from slurm import state
from slurm.attempt import log_of
from slurm.claim import Attached
from slurm.display import Display
from slurm.local import is_alive
from slurm.queue import NoAnswer
from slurm.state import Kind, State
from slurm.verdict import read_verdict

WATCHED = "QIANKA_CALLERS"
"""Variable with the process ids of the callers: when one of them is gone, nobody waits for the result."""
TICK_SECONDS = 0.1
FASTEST_POLL_SECONDS, SLOWEST_POLL_SECONDS = 0.5, 10.0
RETURN_SECONDS = 900.0
"""How long a job that the cluster ended may take to be in the queue again."""
ENDED_SECONDS = {"local": 1.0, "slurm": 75.0}
"""How long a job must seem over before it is: states lag behind a requeue, and NFS may show a new file after 60 s."""
STRAGGLER_SECONDS = {"mistake": 60.0, "node": 60.0, "error": 600.0}
"""How long the others may go on after a rank has failed on Slurm. An error may be the loss of a node, which Slurm
notices after its SlurmdTimeout (300 s by default), and then starts the job again."""
LOCAL_STRAGGLER_SECONDS = 60.0
CANCEL_SECONDS = 60.0
"""How long to see a cancelled job out; a second Ctrl-C leaves at once."""
LOG_TAIL_BYTES = 4096
SHOWN_LINES = 15


class End(Enum):
    """How the waiting ended."""

    FINISHED = 0
    FAILED = 1
    DETACHED = 75
    CANCELLED = 130
    STOPPED = 2
    """The stage committed its progress and left; a new job resumes it."""


def watch_me() -> None:
    """Have the children of this process notice when it dies."""
    os.environ[WATCHED] = ",".join(filter(None, [os.environ.get(WATCHED, ""), str(os.getpid())]))


def callers_alive() -> Callable[[], bool]:
    """A check that the callers of this process, of which all live when it starts, do so still."""
    callers: list[psutil.Process] = []
    for number in filter(None, os.environ.get(WATCHED, "").split(",")):
        try:
            callers.append(psutil.Process(int(number)))
        except psutil.NoSuchProcess:
            return lambda: False
    return lambda: all(is_alive(caller) for caller in callers)


def end_with_callers() -> None:
    """End this process, from a thread, soon after one of its callers has died.

    For Snakemake, which waits for ever for a job whose end it could not print because the terminal is gone as well.
    """
    alive = callers_alive()

    def watch() -> None:
        while alive():
            time.sleep(1)
        os._exit(End.DETACHED.value)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def interrupts_noted() -> Generator[list[int]]:
    """Collect signals instead of dying of them. From before the submit: a Ctrl-C in between must not miss the job."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Waiter:
    """One wait for one job. `interrupts` are those of `interrupts_noted`."""

    def __init__(self, attached: Attached, display: Display, interrupts: list[int]) -> None:
        self.attached = attached
        self.attempt = attached.folder
        self.display = display
        self.is_wanted = callers_alive()
        self.log = log_of(attached.folder, attached.record.job_id)
        self.offset: int | None = None if attached.how == "re-attached" else 0
        self.text = ""
        self.ended_since: float | None = None
        self.returning_since: float | None = None
        self.failed_since: float | None = None
        self.interrupts = interrupts

    def wait(self) -> End:
        """Until the job has ended or a signal says otherwise. Publishing is the caller's."""
        poll, next_poll = FASTEST_POLL_SECONDS, 0.0
        while True:
            if self.interrupts:
                return self._interrupted(self.interrupts[0])
            if not self.is_wanted():
                return End.DETACHED
            self.display.progress(read_progress(self.attempt))
            self._stream()
            if time.monotonic() >= next_poll:
                end = self._look()
                if end is not None:
                    self._stream()
                    return end
                if self.attached.record.executor == "slurm":
                    poll = FASTEST_POLL_SECONDS if self.ended_since else min(poll * 1.2, SLOWEST_POLL_SECONDS)
                next_poll = time.monotonic() + poll
            time.sleep(TICK_SECONDS)

    def _look(self) -> End | None:
        """Ask for the job's state, and judge it; None while it may still succeed."""
        found = state.query(self.attempt.parent, self.attached.record)
        if found.text != self.text and found.kind is not Kind.FINISHED:
            self.text = found.text
            if self.attached.record.executor == "slurm":
                self.display.say(f"job {self.attached.record.job_id}: {found.text}")
        now = time.monotonic()
        self.ended_since = (self.ended_since or now) if found.kind is Kind.ENDED else None
        if found.kind is Kind.FINISHED:
            return End.FINISHED
        if self.ended_since is not None:
            return self._over() if self._explained() or now - self.ended_since > self._patience() else None
        if found.kind is Kind.RETURNING:
            self.returning_since = self.returning_since or now
            return self._over() if now - self.returning_since > RETURN_SECONDS else None
        if found.kind is Kind.ACTIVE:
            self.returning_since = None
            self._end_stragglers(found)
        return None

    def _patience(self) -> float:
        return ENDED_SECONDS[self.attached.record.executor]

    def _explained(self) -> bool:
        """Whether a rank has said why there will be no result."""
        verdict = read_verdict(self.attempt)
        return verdict is not None and verdict.why != "stopped"

    def _over(self) -> End:
        verdict = read_verdict(self.attempt)
        stopped = verdict is not None and verdict.why == "stopped"
        # Somebody cancelled the job, and does not want another one for it.
        return End.STOPPED if stopped and not self.text.startswith("CANCELLED") else End.FAILED

    def _end_stragglers(self, found: State) -> None:
        """When a rank has failed and the others do not notice, free their nodes.

        A job that waits for its next start, after the loss of a node for example, still has the verdicts of the last.
        """
        verdict = read_verdict(self.attempt)
        if verdict is None or verdict.why == "stopped" or not found.text.lower().startswith("running"):
            self.failed_since = None
            return
        self.failed_since = self.failed_since or time.monotonic()
        on_slurm = self.attached.record.executor == "slurm"
        patience = STRAGGLER_SECONDS[verdict.why] if on_slurm else LOCAL_STRAGGLER_SECONDS
        if time.monotonic() - self.failed_since > patience:
            self.display.say(f"rank {verdict.rank} has failed and others go on: ending the job")
            with contextlib.suppress(NoAnswer):  # and then once more
                state.cancel(self.attempt.parent, self.attached.record)
            self.failed_since = time.monotonic()

    def _stream(self) -> None:
        """Show what the job's log has got since the last look, which starts at the end of a log that others saw."""
        if not self.log.exists():
            return
        with self.log.open("rb") as stream:
            if self.offset is None:
                self.offset = max(0, stream.seek(0, os.SEEK_END) - LOG_TAIL_BYTES)
            stream.seek(self.offset)
            piece = stream.read()
        whole = piece.rfind(b"\n") + 1
        self.offset += whole
        if whole:
            self.display.write(piece[:whole].decode(errors="replace"))

    def _interrupted(self, number: int) -> End:
        """Act before a word is said: the terminal may be gone."""
        record = self.attached.record
        if number != signal.SIGINT:
            self.display.say(f"detached; job {record.job_id} goes on, and the same command finds it again")
            return End.DETACHED
        try:
            state.cancel(self.attempt.parent, record, lambda: len(self.interrupts) > 1)
        except NoAnswer as error:
            self.display.say(f"could not cancel job {record.job_id}, which may still run: {error}")
            return End.CANCELLED
        self.display.say(f"cancelled job {record.job_id}; the same command resumes from its last checkpoint")
        end = time.monotonic() + CANCEL_SECONDS
        while len(self.interrupts) < 2 and time.monotonic() < end:
            if state.query(self.attempt.parent, record).kind in (Kind.ENDED, Kind.FINISHED):
                break
            time.sleep(FASTEST_POLL_SECONDS)
        return End.CANCELLED


def failure(attached: Attached, last: str) -> str:
    """Why the job gave no result, and where to look: the message of the rank that failed, and the end of the log.

    `last` is what was last said of the job's state.
    """
    attempt, record = attached.folder, attached.record
    verdict, log = read_verdict(attempt), log_of(attempt, record.job_id)
    lines = [f"failed: job {record.job_id} ended without a result ({last})"]
    if verdict and verdict.why == "mistake":
        return f"failed: {verdict.message}"
    if verdict:
        lines = [f"failed on rank {verdict.rank} ({verdict.node}, job {verdict.job_id}): {verdict.message}"]
    if log.exists():
        tail = log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
        lines += [f"the last lines of {log}:", *(f"    {line}" for line in tail)]
    if verdict is None:
        lines.append("run the same command again to resume from the last checkpoint")
    return "\n".join(lines)
