"""Wait for an attempt's job: show its log and progress, say what happens to it, and take Ctrl-C for what it is.

SIGINT cancels the job. SIGTERM and SIGHUP detach: the job goes on, and the same command finds it again.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType

from data.progress import read_progress
from slurm.attempt import is_cancelled, log_of, mark_cancelled
from slurm.claim import Attached
from slurm.query.queue import NoAnswer
from slurm.verdict import Verdict, explain, read_verdict
from slurm.wait import state
from slurm.wait.background import in_background
from slurm.wait.callers import callers_alive
from slurm.wait.display import Display
from slurm.wait.judge import End, Judge
from slurm.wait.restart import made_room, went_on, why_again
from slurm.wait.state import Kind, State

TICK_SECONDS = 0.1
FASTEST_POLL_SECONDS, SLOWEST_POLL_SECONDS = 0.5, 10.0
SILENT_SECONDS = 15.0
"""An answer that takes longer is none, as far as a person is concerned."""
CANCEL_SECONDS = 60.0
"""How long to see a cancelled job out; a second Ctrl-C leaves at once."""
ONE_CTRL_C_SECONDS = 1.5
"""Signals of one kind that come closer together are one: the terminal's, and that of the caller who passes it on."""
LOG_TAIL_BYTES = 4096
SHOWN_LINES = 15


@contextmanager
def interrupts_noted() -> Generator[list[int]]:
    """Collect signals instead of dying of them. From before the submit: a Ctrl-C in between must not miss the job.

    A hang-up that whoever started us has us ignore (nohup) stays ignored.
    """
    noted: list[int] = []
    last: dict[int, float] = {}

    def note(number: int, frame: FrameType | None) -> None:
        if time.monotonic() - last.get(number, -ONE_CTRL_C_SECONDS) >= ONE_CTRL_C_SECONDS:
            noted.append(number)
        last[number] = time.monotonic()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] == signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Waiter:
    """One wait for one job. `interrupts` are those of `interrupts_noted`."""

    def __init__(
        self,
        attached: Attached,
        display: Display,
        interrupts: list[int],
        beside: Callable[[State], str] = lambda found: "",
    ) -> None:
        """`beside` is called with each state of a job that may still succeed, and says why it cannot, if it cannot."""
        self.attached = attached
        self.attempt, self.record = attached.folder, attached.record
        self.display = display
        self.interrupts = interrupts
        self.is_wanted = callers_alive()
        self.beside = beside
        self.judge = Judge(attached.folder, attached.record, display.say)
        self.log = log_of(attached.folder, attached.record.job_id)
        self.offset: int | None = None if attached.how == "re-attached" else 0
        self.text = ""
        self.before = read_progress(self.attempt) if attached.how == "resumed" else None
        """How far the last start was when last looked at, or the one before it until it goes on."""
        self.verdict: Verdict | None = None
        """What a rank of the last start has said, which the next one removes, perhaps before Slurm is asked again."""
        self.nodes = ""
        self.restarts: int | None = None
        self.ran = 0.0
        """Unix time at which the job was last seen to run; 0 while it waits for its first start, or for another one."""
        self.silent_since = ""
        self.news: list[Future[str]] = []
        """What is being asked about the job, to be told when it is known."""

    def wait(self) -> End:
        """Until the job has ended or a signal says otherwise. Publishing is the caller's."""
        poll, next_poll, asked = FASTEST_POLL_SECONDS, 0.0, 0.0
        answer: Future[State] | None = None
        while True:
            if self.interrupts:
                return self._interrupted(self.interrupts[0])
            if not self.is_wanted():
                return End.DETACHED
            self._show()
            now = time.monotonic()
            if answer is None and now >= next_poll:
                answer, asked = in_background(lambda: state.query(self.attempt.parent, self.record)), now
            elif answer is not None and answer.done():
                found, answer = answer.result(), None
                end = self._look(found)
                if end is not None:
                    self._show()
                    return end
                if self.record.executor == "slurm":
                    over = found.kind is Kind.ENDED
                    poll = FASTEST_POLL_SECONDS if over else min(poll * 1.2, SLOWEST_POLL_SECONDS)
                next_poll = now + poll
            elif answer is not None and now - asked > SILENT_SECONDS:
                self._heard(silent=True)
            time.sleep(TICK_SECONDS)

    def _look(self, found: State) -> End | None:
        """Say what is new about the job, and judge it; None while it may still succeed."""
        self._heard(found.silent)
        if self.record.executor == "slurm":
            self._follow(found)
            if found.text != self.text and found.kind is not Kind.FINISHED and found.kind is not Kind.UNKNOWN:
                self.display.say(f"job {self.record.job_id} {found.text}")
        if found.kind is not Kind.UNKNOWN:
            self.text = found.text
        end = self.judge.look(found)
        hopeless = self.beside(found) if end is None else ""
        if not hopeless:
            return end
        self.text = hopeless
        return self.judge.give_up(hopeless)

    def _heard(self, silent: bool) -> None:
        """Say when Slurm ceases to answer, and when it does again."""
        if self.record.executor == "local":
            return
        if silent and not self.silent_since:
            self.silent_since = time.strftime("%H:%M:%S")
            self.display.say(f"Slurm does not answer since {self.silent_since}; the job goes on without it")
        elif not silent and self.silent_since:
            self.display.say(f"Slurm answers again, after it did not since {self.silent_since}")
            self.silent_since = ""

    def _follow(self, found: State) -> None:
        """Ask why, when a job that ran has to start again; it may do so between two looks, also several times."""
        said, job_id = found.said, self.record.job_id
        if said is None or job_id is None:
            return
        known, now = self.restarts or 0, said.restarts or 0
        rose = self.restarts is not None and now > known
        if self.ran and (rose or found.kind is Kind.RETURNING):
            nodes, ran, verdict = self.nodes, self.ran, read_verdict(self.attempt) or self.verdict
            self.ran, known = 0.0, known + 1  # Slurm may count it a little later
            self.verdict = None
            self.news.append(in_background(lambda: why_again(job_id, nodes, ran, verdict)))
            if verdict and verdict.why == "stopped":
                self.news.append(in_background(lambda: made_room(job_id, nodes, ran, lambda: self.ran > 0)))
        if self.restarts is not None or said.restarts is not None:
            self.restarts = max(known, now)
        if found.is_running:
            self.nodes, self.ran = said.nodes or self.nodes, time.time()

    def _show(self) -> None:
        """The log, how far the job is, and what is known by now of why it starts again."""
        for known in [news for news in self.news if news.done()]:
            self.news.remove(known)
            if known.result():
                self.display.say(f"job {self.record.job_id} {known.result()}")
        reading = read_progress(self.attempt)
        if self.before and reading and self.before["started"] != reading["started"]:
            self.display.say(went_on(self.before, reading))
            self.ran, self.verdict = time.time(), None  # Slurm may not be asked again before it ends
        elif self.ran:
            self.verdict = read_verdict(self.attempt) or self.verdict
        self.before = reading or self.before
        self.display.progress(reading)
        self._stream()

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
        job_id = self.record.job_id
        if number != signal.SIGINT:
            self.display.say(f"detached; job {job_id} goes on, and the same command finds it again")
            return End.DETACHED
        with contextlib.suppress(OSError):  # a full disk
            mark_cancelled(self.attempt, job_id)
        end = time.monotonic() + CANCEL_SECONDS
        while True:
            try:
                state.cancel(self.attempt.parent, self.record, lambda: len(self.interrupts) > 1)
                break
            except NoAnswer as error:
                if len(self.interrupts) > 1 or time.monotonic() > end:
                    self.display.say(f"could not cancel job {job_id}, which may still run: {error}")
                    return End.CANCELLED
                time.sleep(FASTEST_POLL_SECONDS)
        self.display.say(f"cancelled job {job_id}; the same command resumes from its last checkpoint")
        while len(self.interrupts) < 2 and time.monotonic() < end:
            if state.query(self.attempt.parent, self.record).kind in (Kind.ENDED, Kind.FINISHED):
                break
            time.sleep(FASTEST_POLL_SECONDS)
        return End.CANCELLED


def failure(attached: Attached, last: str) -> str:
    """Why the job gave no result, and where to look: the message of the rank that failed, and the end of the log.

    `last` is what was last said of the job's state.
    """
    attempt, record = attached.folder, attached.record
    verdict, log = explain(attempt, record.job_id), log_of(attempt, record.job_id)
    lines = [f"failed: job {record.job_id} gave no result: it {last}"]
    if verdict and verdict.why == "mistake":
        return f"failed: {verdict.message}"
    if is_cancelled(attempt, record.job_id) or last.startswith("was cancelled"):
        committed = f" ({verdict.message})" if verdict and verdict.why == "stopped" else ""
        said = last if last.startswith("was cancelled") else "was cancelled"
        return f"job {record.job_id} {said}{committed}; the same command resumes it"
    if verdict:
        lines = [f"failed on rank {verdict.rank} ({verdict.node}, job {verdict.job_id}): {verdict.message}"]
    if log.exists():
        tail = log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
        lines += [f"the last lines of {log}:", *(f"    {line}" for line in tail)]
    if verdict is None:
        lines.append("run the same command again to resume from the last checkpoint")
    return "\n".join(lines)
