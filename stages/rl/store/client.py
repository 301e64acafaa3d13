"""The store as actors and learners see it. Every call may be repeated: what was done stays done."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from data.trajectories import Trajectories
from stages.rl.messages import Inventory, Lease, Shelved

Put = Literal["kept", "duplicate", "stale"]


class Restarted(Exception):
    """The shard was started anew and knows nothing: `restore` it."""


class ShardClient:
    """One shard; for its learner, and for the other learners, who fetch groups from it."""

    def __init__(self, path: Path, seconds: float = 60.0) -> None:
        """`path` is its announcement, ATTEMPT/endpoints/shard-0000.json; calls try for `seconds`, then Unreachable."""

    def put(self, lease: Lease, trajectories: Trajectories, whole: bool, member: str) -> Put:
        """Give it a group; when it returns, the group is durable or of no use. Waits while the shard is full."""
        raise NotImplementedError

    def begun(self, position: int) -> Trajectories | None:
        """The half-played group of a position, if it has one."""
        raise NotImplementedError

    def restore(self, cursor: int, ahead: Iterable[int], attempts: Mapping[int, int]) -> Inventory:
        """Tell it where the learners stand, at each start of theirs and of its own."""
        raise NotImplementedError

    def ready(self) -> list[Shelved]:
        """Whole groups that nobody has taken, by position. Raises Restarted."""
        raise NotImplementedError

    def take(self, keys: Sequence[tuple[int, int]]) -> Trajectories:
        """These (position, attempt), in this order; `groups` numbers them from 0. Raises Restarted."""
        raise NotImplementedError

    def again(self, attempts: Mapping[int, int]) -> None:
        """These positions are to be played again, as these attempts. Raises Restarted."""
        raise NotImplementedError

    def done(self, cursor: int, ahead: Iterable[int]) -> None:
        """These positions are trained or set aside. Raises Restarted."""
        raise NotImplementedError

    def inventory(self) -> Inventory:
        """What it has."""
        raise NotImplementedError


class Store:
    """All shards, for actors: each position has its own."""

    def __init__(self, folder: Path, seconds: float = 60.0, gives_up: Callable[[], bool] = lambda: False) -> None:
        """`folder` has the announcements. `gives_up` is asked while a put waits for room; then it raises Full."""

    def put(self, lease: Lease, trajectories: Trajectories, whole: bool, member: str) -> Put:
        """As of a shard."""
        raise NotImplementedError

    def begun(self, position: int) -> Trajectories | None:
        """As of a shard."""
        raise NotImplementedError
