"""A weights server: hands out versions in pieces to whoever asks with its token, and counts what leaves its supernode.

The learner's own one and the relays are the same; they differ in where their copies come from. Each reader has a thread
of Flight's and at most two pieces in memory: one that stalls holds up nobody else.
"""

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import flight

from data.transport.server import Action, Server
from stages.rl.weights.copies import Copies
from stages.rl.weights.pieces import Name, Nothing, Order, Outline, Traffic
from stages.rl.weights.pull import Failed

SCHEMA = pa.schema([("bytes", pa.uint8())])
COUNTED = 64
"""Versions whose traffic is remembered."""


class WeightsServer(Server):
    """Its actions are `outline` of a `Name`, and `traffic`; an `Order` gets a stream of its pieces."""

    def __init__(self, host: str, copies: Copies, supernode: str, *, tls: bool = False) -> None:
        super().__init__(
            host, {"outline": Action(Name, self._outline), "traffic": Action(Nothing, self._traffic)}, tls=tls
        )
        self._copies, self._supernode = copies, supernode
        self._lock = threading.Lock()
        self._crossed: dict[int, dict[str, int]] = {}

    def get(self, order: bytes, wanted: Callable[[], bool]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The pieces of an `Order`. ArrowKeyError once the version is replaced."""
        asked = self.message(Order, order)
        version = self._outline(asked).version
        return SCHEMA, self._counted(self._copies.read(asked, wanted), version, asked.supernode)

    def _outline(self, name: Name) -> Outline:
        try:
            return self._copies.outline(name.digest)
        except Failed as error:  # of the server from which a relay gets its weights
            raise flight.FlightUnavailableError(str(error)) from None

    def _traffic(self, _: Nothing) -> Traffic:
        with self._lock:
            crossed = {version: dict(places) for version, places in self._crossed.items()}
        kept, refused = self._copies.kept(), self._copies.refused
        return Traffic(start=self.endpoint.start, kept=kept, crossed=crossed, refused=refused)

    def _counted(self, pieces: Iterator[pa.Buffer], version: int, supernode: str) -> Iterator[pa.RecordBatch]:
        for data in pieces:
            if supernode != self._supernode:
                self._count(version, supernode, data.size)
            array = pa.Array.from_buffers(pa.uint8(), data.size, [None, data])
            yield pa.RecordBatch.from_arrays([array], schema=SCHEMA)

    def _count(self, version: int, supernode: str, num_bytes: int) -> None:
        with self._lock:
            places = self._crossed.setdefault(version, {})
            places[supernode] = places.get(supernode, 0) + num_bytes
            while len(self._crossed) > COUNTED:
                del self._crossed[next(iter(self._crossed))]
