"""What others have played of leased prompts, on its way from the store: a shard may be away for a while."""

from concurrent.futures import Future, ThreadPoolExecutor

from data.trajectories import Trajectories
from stages.rl.messages import Lease
from stages.rl.store.client import Store

SIDE_BY_SIDE = 4


class Beginnings:
    """Fetches them, beside the engine's loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE, "beginnings")
        self._under_way: dict[str, tuple[Lease, Future[Trajectories | None]]] = {}

    def __len__(self) -> int:
        """Those that are under way."""
        return len(self._under_way)

    def fetch(self, lease: Lease) -> None:
        """Ask for one."""
        self._under_way[lease.id] = lease, self._pool.submit(self._store.begun, lease.position)

    def forget(self, lease: str) -> None:
        """It is no longer wanted."""
        self._under_way.pop(lease, None)

    def arrived(self) -> list[tuple[Lease, Future[Trajectories | None]]]:
        """Those that have come since the last call; the result is None where nothing was begun, or Unreachable."""
        done = [(lease, future) for lease, future in self._under_way.values() if future.done()]
        for lease, _ in done:
            del self._under_way[lease.id]
        return done

    def close(self) -> None:
        """Fetch no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
