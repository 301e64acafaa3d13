"""Threads that journal what was put, many groups at a time.

A segment costs some milliseconds of processor time, however few its groups are. So segments follow each other at a
distance, in which groups gather; what comes after a silence, or is large, is written at once.
"""

import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from data.segments import Origin
from data.trajectories import Trajectories
from stages.rl.store.journal import Journal
from stages.rl.store.shelf import Decision

THREADS = 2
"""The disk writes for one while the other lays out its segment."""
SEGMENT_BYTES = 2**26
"""More go into another segment, so that acknowledgements do not wait for too much."""
APART_SECONDS = 0.1
"""Between the beginnings of two segments, unless more than `ENOUGH_BYTES` wait."""
ENOUGH_BYTES = 2**25


@dataclass
class Pending:
    """A group on its way."""

    origin: Origin
    part: Trajectories
    journalled: threading.Event = field(default_factory=threading.Event)
    decision: Decision = "pending"

    def wait(self) -> Decision:
        """Until the group is durable: what may be acknowledged."""
        self.journalled.wait()
        return self.decision


class Writers:
    """Of one shard. `settle` is called for each group as soon as it is durable."""

    def __init__(self, journal: Journal, settle: Callable[[Origin], Decision], current: Callable[[], bool]) -> None:
        """`current` says whether this process is still the shard; if not, it ends."""
        self._journal, self._settle, self._current = journal, settle, current
        self._waiting: list[Pending] = []
        self._num_bytes = 0
        self._changed = threading.Condition()
        self._began = -APART_SECONDS
        for number in range(THREADS):
            threading.Thread(target=self._run, name=f"journal {number}", daemon=True).start()

    def begin(self, one: Pending) -> Pending:
        """Make the group durable as soon as may be; `one.wait()` returns when it is."""
        with self._changed:
            self._waiting.append(one)
            self._num_bytes += one.origin.num_bytes
            if len(self._waiting) == 1 or self._num_bytes >= ENOUGH_BYTES:  # else a thread waits for time to pass
                self._changed.notify()
        return one

    def _run(self) -> None:
        try:
            while True:
                self._write_some()
        except OSError as error:  # a full disk, say
            print(f"the shard ends: the journal in {self._journal.folder} cannot be written: {error}", flush=True)
            os._exit(1)
        finally:
            # Nothing of it was acknowledged; the rank reads the log and starts another shard.
            traceback.print_exc()
            os._exit(1)

    def _write_some(self) -> None:
        with self._changed:
            self._gather()
            some = self._next()
        self._journal.write([one.origin for one in some], [one.part for one in some])
        if not self._current():
            # Whoever was announced in our place may have read the journal before these groups were in it.
            raise RuntimeError("another process has taken over this shard")
        for one in some:
            one.decision = self._settle(one.origin)
            one.journalled.set()

    def _gather(self) -> None:
        """Wait until something is there and the last segment is some time ago, or enough is there for one."""
        while self._num_bytes < ENOUGH_BYTES:
            left = self._began + APART_SECONDS - time.monotonic() if self._waiting else None
            if left is not None and left <= 0:
                break
            self._changed.wait(left)
        self._began = time.monotonic()

    def _next(self) -> list[Pending]:
        size, count = 0, 0
        while count < len(self._waiting) and (
            not count or size + self._waiting[count].origin.num_bytes <= SEGMENT_BYTES
        ):
            size, count = size + self._waiting[count].origin.num_bytes, count + 1
        some, self._waiting = self._waiting[:count], self._waiting[count:]
        self._num_bytes -= size
        return some
