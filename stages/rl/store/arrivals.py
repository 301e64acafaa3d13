"""What comes into a shard: room in memory for it, and whose the batches are."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from data.transport.client import STREAM_SECONDS
from stages.rl.store.wire import Offer

SPARE = 4
"""So many times the bytes of a group are more than Arrow needs for it, offsets of each column and all."""


@dataclass(eq=False)
class Arrival:
    """A stream that comes in."""

    end: float
    """Of the time (monotonic) in which it has to come: its caller waits no longer, and others want the room."""
    num_bytes: int = 0
    """Of its groups for which there is room."""


class Room:
    """Memory for groups that are coming. Whoever calls it holds the shard's lock."""

    def __init__(self, bound: int) -> None:
        """`bound` is in bytes; a group alone may have more."""
        self._bound, self._arrivals = bound, set[Arrival]()

    def begin(self) -> Arrival:
        """A stream begins, with room for nothing yet."""
        return Arrival(time.monotonic() + STREAM_SECONDS)

    def takes(self, arrival: Arrival, num_bytes: int) -> bool:
        """Whether there is room for a group; then it is kept until `leave`, or until the time of the stream is over."""
        now = time.monotonic()
        used = sum(one.num_bytes for one in self._arrivals if one.end > now)
        if used and used + num_bytes > self._bound:
            return False
        arrival.num_bytes += num_bytes
        self._arrivals.add(arrival)
        return True

    def leave(self, arrival: Arrival) -> None:
        """All has come, or nothing more will."""
        self._arrivals.discard(arrival)


def by_groups(
    offers: Sequence[Offer], stream: Iterator[pa.RecordBatch], end: float
) -> Iterator[tuple[Sequence[Offer], list[pa.RecordBatch]]]:
    """Groups and the batches that they are in: one or more groups in a batch, or one group in several.

    ArrowInvalid where more comes than was offered, for which room was kept, or less, or too late.
    """
    left, first = SPARE * sum(offer.num_bytes for offer in offers), 0
    while first < len(offers):
        last, rows, wanted = first + 1, 0, offers[first].samples
        batches = list[pa.RecordBatch]()
        while rows < wanted:
            batch = next(stream, None)
            if batch is None:
                raise pa.ArrowInvalid("less comes than was offered")
            if time.monotonic() > end:
                raise pa.ArrowInvalid(f"it took more than {STREAM_SECONDS:g} s to come")
            left, rows = left - batch.nbytes, rows + batch.num_rows
            batches.append(batch)
            while rows > wanted and last < len(offers):
                wanted, last = wanted + offers[last].samples, last + 1
            if left < 0 or rows > wanted:
                raise pa.ArrowInvalid("more comes than was offered")
        yield offers[first:last], batches
        first = last
    if next(stream, None) is not None:
        raise pa.ArrowInvalid("more comes than was offered")
