"""Puts of several threads on their way to a shard: what comes while others are under way goes together."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from data.segments import num_bytes
from data.trajectories import Trajectories
from stages.rl.store.shelf import Decision
from stages.rl.store.wire import MOST_OFFERS, Offer

STREAMS = 2
"""At the same time: one is sent while the shard makes the other durable."""
STREAM_BYTES = 2**26
"""Groups that would make a stream longer go in the next one; a group alone may be longer."""
TABLE_BYTES = 2**25
"""Smaller groups go together in one batch. The copy costs less than what client, Flight and shard do for each batch."""


@dataclass
class Sent:
    """A group of one thread."""

    offer: Offer
    group: Trajectories
    answered: threading.Event = field(default_factory=threading.Event)
    decision: Decision | None = None
    error: Exception | None = None


class Sending:
    """To one shard. `send` gives it groups in one stream and returns the decision on each."""

    def __init__(self, send: Callable[[Sequence[Sent]], Sequence[Decision]]) -> None:
        self._send = send
        self._streams, self._lock = ThreadPoolExecutor(STREAMS, "streams"), threading.Lock()
        self._waiting: list[Sent] = []

    def put(self, offer: Offer, group: Trajectories) -> Decision:
        """What the shard decides. Raises what `send` raises for this group; what went with it is not to blame."""
        one = Sent(offer, group)
        with self._lock:
            self._waiting.append(one)
        # A thread of its own sends, not whoever comes: those whose groups have gone wait for their answers alone.
        self._streams.submit(self._go_next)
        one.answered.wait()
        if one.error is not None:
            raise one.error
        assert one.decision is not None
        return one.decision

    def _go_next(self) -> None:
        if some := self._next():  # else they went with others
            self._go(some)

    def _next(self) -> list[Sent]:
        with self._lock:
            size, count = 0, 0
            for one in self._waiting[:MOST_OFFERS]:
                size += one.offer.num_bytes
                if count and size > STREAM_BYTES:
                    break
                count += 1
            some, self._waiting = self._waiting[:count], self._waiting[count:]
        return some

    def _go(self, some: Sequence[Sent]) -> None:
        """Send them; when the shard refuses them together, each alone, so that one that is wrong harms no other."""
        try:
            for one, decision in zip(some, self._send(some), strict=True):
                one.decision = decision
        except (ValueError, KeyError) as error:
            for one in some:
                if len(some) > 1:
                    self._go([one])
                else:
                    one.error = error
        except Exception as error:  # noqa: BLE001 - raised where the group was put
            for one in some:
                one.error = error
        finally:
            for one in some:
                one.answered.set()


def tables(groups: Sequence[Trajectories]) -> Iterator[Trajectories]:
    """The same groups in the same order, small ones joined."""
    some, size = list[Trajectories](), 0
    for group in groups:
        size += num_bytes(group)
        if some and size > TABLE_BYTES:
            yield Trajectories.joined(some)
            some, size = [], num_bytes(group)
        some.append(group)
    yield Trajectories.joined(some)
