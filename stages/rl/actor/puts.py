"""Groups on their way into the store, beside the engine's loop."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from data.trajectories import Trajectories
from data.transport.client import Unreachable
from stages.rl.coordinator.client import Membership
from stages.rl.messages import Lease
from stages.rl.store.client import GaveUp, Store

SIDE_BY_SIDE = 32
"""Puts at the same time: a shard makes those durable together that come within some 0.1 s. Each is a thread that waits.
"""


class Puts:
    """Puts groups, and tells the coordinator what has become of their leases."""

    def __init__(self, store: Store, membership: Membership, member: str, bound: int) -> None:
        """`bound` is how many may be under way."""
        self._bound = bound
        self._store, self._membership, self._member = store, membership, member
        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE, "puts")
        self._under_way: set[Future[None]] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Groups that are under way."""
        return len(self._under_way)

    @property
    def room(self) -> int:
        """Groups that may be put without waiting for others."""
        return self._bound - len(self._under_way)

    def put(self, lease: Lease, table: Callable[[], Trajectories | None], whole: bool) -> None:
        """Put what `table` returns, in a thread."""
        assert self.room > 0
        future = self._pool.submit(self._put, lease, table, whole)
        with self._lock:
            self._under_way.add(future)
        future.add_done_callback(self._is_done)

    def check(self) -> None:
        """Raise what one has failed of, such as a ValueError for a reward that is no number."""
        for future in list(self._under_way):
            if future.done():
                self._under_way.discard(future)
                future.result()

    def wait(self, seconds: float) -> bool:
        """Until all are there, at most so long; whether they are."""
        end = time.monotonic() + seconds
        while any(not future.done() for future in list(self._under_way)) and time.monotonic() < end:
            time.sleep(0.01)
        return all(future.done() for future in list(self._under_way))

    def close(self) -> None:
        """Begin no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _put(self, lease: Lease, table: Callable[[], Trajectories | None], whole: bool) -> None:
        trajectories = table()
        if trajectories is not None:
            try:
                self._store.put(lease, trajectories, whole, self._member)
            except (GaveUp, Unreachable) as error:
                self._membership.ended(lease.id, "handed back", str(error))
                return
        self._membership.ended(lease.id, "stored" if whole else "handed back")

    def _is_done(self, future: Future[None]) -> None:
        if not future.cancelled() and future.exception() is None:
            with self._lock:
                self._under_way.discard(future)
