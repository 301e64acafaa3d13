"""The store as actors and learners see it. Every call may be repeated: what was done stays done."""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import pyarrow as pa

from data.segments import num_bytes
from data.trajectories import Trajectories
from data.transport.client import Caller, Unreachable
from data.transport.trajectories import batches, from_batches, schema
from stages.rl.messages import Inventory, Lease, Message, Shelved
from stages.rl.store.sending import Sending, Sent, tables
from stages.rl.store.shelf import Decision
from stages.rl.store.wire import (
    Again,
    Answer,
    Answers,
    Division,
    Done,
    Look,
    Nothing,
    Offer,
    Offers,
    Restore,
    Restored,
    Take,
)

Put = Literal["kept", "duplicate", "stale"]
Stop = Callable[[], bool]
WAIT_SECONDS = 0.02, 0.5
"""Before a put is tried again that the shard had no room for: at first, at most."""
TRY_SECONDS = 5.0
"""For a shard that does not answer, until an actor looks anew how many there are."""
M = TypeVar("M", bound=Message)
T = TypeVar("T")


class Restarted(Exception):
    """The shard was started anew and knows nothing, or has not what was asked for: its learner has to `restore` it."""


class GaveUp(Exception):
    """A put still waited for room when it was told to stop."""


class ShardClient:
    """One shard; for its learner, and for the other learners, who fetch groups from it. Several threads may use it."""

    def __init__(self, path: Path, seconds: float = 60.0) -> None:
        """`path` is its announcement, ATTEMPT/endpoints/shard-0000.json; calls try for `seconds`, then Unreachable."""
        self._caller, self._seconds, self._start = Caller(path, max(seconds, 1.0)), seconds, ""
        self._sending, self._restore_id = Sending(self._send), secrets.token_hex(8)

    def put(
        self, lease: Lease, trajectories: Trajectories, whole: bool, member: str, stop: Stop = lambda: False
    ) -> Put:
        """Give it a group; when it returns, the group is durable or of no use.

        Waits while the shard has no room or was not restored, until `stop` says so: GaveUp. What several threads put
        at the same time goes there together.
        """
        offer = Offer(
            position=lease.position,
            attempt=lease.attempt,
            whole=whole,
            member=member[:64],
            lease=lease.id,
            samples=len(trajectories),
            tokens=len(trajectories.tokens),
            num_bytes=num_bytes(trajectories),
        )
        pause = WAIT_SECONDS[0]
        while True:
            decision = self._sending.put(offer, trajectories)
            while decision not in ("kept", "duplicate", "stale"):
                if stop():
                    raise GaveUp(f"position {lease.position}: the shard says {decision!r}")
                time.sleep(pause)
                pause = min(2 * pause, WAIT_SECONDS[1])
                decision = self._caller.call("offer", offer, Answer, again=self._seconds).decision
                if decision == "kept":
                    break
            else:
                return decision

    def begun(self, position: int) -> Trajectories | None:
        """The half-played group of a position, if it has one."""
        return self._caller.get(Take(begun=position), _group, again=self._seconds)

    def restore(self, cursor: int, ahead: Iterable[int], attempts: Mapping[int, int], committed: int = 0) -> Inventory:
        """Tell it where the learners stand, at each start of theirs and of its own, and their checkpoint's cursor.

        It reads its journal, which may take longer than one waits here: Unreachable. Asked again it goes on with that,
        as the learners stood when it was asked first.
        """
        where = Restore(
            cursor=cursor, ahead=tuple(ahead), attempts=dict(attempts), committed=committed, id=self._restore_id
        )
        end = time.monotonic() + self._seconds
        while (found := self._caller.call("restore", where, Restored, again=self._seconds).inventory) is None:
            if time.monotonic() > end:
                raise Unreachable("the shard still reads its journal")
        self._start, self._restore_id = found.start, secrets.token_hex(8)
        return found

    def ready(self, missing: int = 0, enough: int = 0, seconds: float = 0.0) -> list[Shelved]:
        """Whole groups that nobody has taken, by position: when there are `enough`, at the latest after `seconds`.

        `missing` were too few when last asked. Raises Restarted.
        """
        look = Look(start=self._start, missing=missing, enough=enough, seconds=seconds)
        return list(self._ask("ready", look, Inventory).shelved)

    def take(self, keys: Sequence[tuple[int, int]]) -> Trajectories:
        """These (position, attempt), in this order; `groups` numbers them from 0. Raises Restarted."""
        assert keys
        try:
            return self._caller.get(Take(start=self._start, keys=tuple(keys)), from_batches, again=self._seconds)
        except KeyError as error:
            raise Restarted(str(error)) from None

    def again(self, attempts: Mapping[int, int]) -> None:
        """These positions are to be played again, as these attempts. Raises Restarted."""
        self._ask("again", Again(start=self._start, attempts=dict(attempts)), Nothing)

    def done(self, cursor: int, ahead: Iterable[int], committed: int = 0) -> None:
        """These positions are trained or set aside; `committed` is the cursor of the last checkpoint.

        Nobody will ask for what is before that any more: it goes. Raises Restarted.
        """
        self._ask("done", Done(start=self._start, cursor=cursor, ahead=tuple(ahead), committed=committed), Nothing)

    def inventory(self) -> Inventory:
        """What it has. Raises Restarted."""
        return self._ask("inventory", Nothing(), Inventory)

    def division(self) -> Division:
        """Which one it is, of how many."""
        return self._caller.call("division", Nothing(), Division, again=self._seconds)

    def _send(self, groups: Sequence[Sent]) -> Sequence[Decision]:
        offers = Offers(groups=tuple(one.offer for one in groups))
        kind = schema(groups[0].group.terms.shape[1])

        def stream() -> Iterator[pa.RecordBatch]:
            return (batch for table in tables([one.group for one in groups]) for batch in batches(table))

        return self._caller.put(offers, kind, stream, Answers, again=self._seconds).decisions

    def _ask(self, action: str, message: Message, answer: type[M]) -> M:
        try:
            return self._caller.call(action, message, answer, again=self._seconds)
        except KeyError as error:
            raise Restarted(str(error)) from None


class Store:
    """All shards, for actors: each position has its own. How many there are may change with each start of a learner."""

    def __init__(self, folder: Path, seconds: float = 60.0, stop: Stop = lambda: False) -> None:
        """`folder` has the announcements. `stop` ends a put that waits: GaveUp, or Unreachable without a shard."""
        self._folder, self._seconds, self._stop = folder, seconds, stop
        self._clients: dict[int, ShardClient] = {}
        self._shards = 0

    def put(self, lease: Lease, trajectories: Trajectories, whole: bool, member: str) -> Put:
        """As of a shard."""
        return self._tries(lease.position, lambda shard: shard.put(lease, trajectories, whole, member, self._stop))

    def begun(self, position: int) -> Trajectories | None:
        """As of a shard."""
        return self._tries(position, lambda shard: shard.begun(position))

    def _tries(self, position: int, call: Callable[[ShardClient], T]) -> T:
        end = time.monotonic() + self._seconds
        while True:
            try:
                if not self._shards:
                    self._shards = self._client(0).division().shards
                return call(self._client(position % self._shards))
            except (Unreachable, KeyError) as error:
                self._shards = 0
                if time.monotonic() > end or self._stop():
                    raise Unreachable(f"position {position}: {error}") from error
                time.sleep(WAIT_SECONDS[0])

    def _client(self, shard: int) -> ShardClient:
        path = self._folder / f"shard-{shard:04d}.json"
        return self._clients.setdefault(shard, ShardClient(path, min(TRY_SECONDS, self._seconds)))


def _group(stream: Iterator[pa.RecordBatch]) -> Trajectories | None:
    parts = list(stream)
    return from_batches(parts) if parts else None
