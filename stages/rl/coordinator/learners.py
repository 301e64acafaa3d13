"""The coordinator as the learners see it. They survive its restarts: they say again what it has to know."""

import threading
import time
from pathlib import Path

from data.threads import Worker
from data.transport.client import Caller, Unreachable
from stages.rl.coordinator.status import Status
from stages.rl.messages import Advance, End, Message

RETRY_SECONDS = 0.25
"""Between two tries to reach a coordinator that does not answer."""


class Learners:
    """Their side. A thread says again, once a second, where the learner is: a new coordinator has to know."""

    def __init__(self, path: Path, seconds: float = 1.0) -> None:
        """`path` is the coordinator's announcement."""
        self._caller, self._seconds = Caller(path), seconds
        self._wake = threading.Event()
        self._advance: Advance | None = None
        self._status: Status | None = None
        self._end = ""
        self._thread = Worker(self._run, "coordinator")

    def advance(self, advance: Advance) -> None:
        """Where the learner is now. Returns at once; it is said until a coordinator has heard it, and then again."""
        self._advance = advance
        self._wake.set()

    def status(self) -> Status | None:
        """The newest answer; None before the first. RuntimeError when nobody asks any more."""
        self._thread.check()
        return self._status

    def end(self, why: str, seconds: float = 5.0) -> None:
        """Tell all members to go. Gives up after `seconds`."""
        self._end = why
        self._wake.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            self._wake.clear()
            last = self._end
            try:
                if last:
                    self._caller.call("end", End(why=last), Message)
                    return
                if self._advance is None:
                    self._status = self._caller.call("status", Message(), Status)
                else:
                    self._status = self._caller.call("advance", self._advance, Status)
            except Unreachable:
                time.sleep(RETRY_SECONDS)
                continue
            self._wake.wait(self._seconds)
