"""A weights server: hands out versions in pieces to whoever asks with its token, and counts what leaves its supernode.

The learner's own one and the relays are the same; they differ in where their copies come from. Each reader has a thread
of Flight's and at most two pieces in memory: one that stalls holds up nobody else.
"""

import secrets
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight
from pydantic import ValidationError

from data.transport.endpoint import TokenCheck
from stages.rl.weights.copies import Copies
from stages.rl.weights.pieces import Name, Order, Traffic
from stages.rl.weights.pull import Failed

SCHEMA = pa.schema([("bytes", pa.uint8())])
COUNTED = 64
"""Versions whose traffic is remembered."""


class WeightsServer(flight.FlightServerBase):
    """Actions: `outline` of a `Name`, `traffic`. `do_get` of an `Order` streams its pieces."""

    def __init__(self, location: str, token: str, copies: Copies, supernode: str) -> None:
        super().__init__(location, middleware={"token": TokenCheck(token)})
        self.token = token
        self._copies, self._supernode = copies, supernode
        self._start = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._crossed: dict[int, dict[str, int]] = {}

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        """See the class."""
        if action.type == "outline":
            name = _read(Name, action.body.to_pybytes())
            yield _answer(lambda: self._copies.outline(name.digest)).model_dump_json().encode()
        elif action.type == "traffic":
            with self._lock:
                crossed = {version: dict(places) for version, places in self._crossed.items()}
            kept = self._copies.kept()
            refused = self._copies.refused
            yield Traffic(start=self._start, kept=kept, crossed=crossed, refused=refused).model_dump_json().encode()
        else:
            raise pa.ArrowInvalid(f"there is no action {action.type!r}; there are outline and traffic")

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        """See the class. The call fails with KeyError once the version is replaced."""
        order = _read(Order, ticket.ticket)
        version = _answer(lambda: self._copies.outline(order.digest)).version
        pieces = self._copies.read(order, lambda: not context.is_cancelled())
        return flight.GeneratorStream(SCHEMA, self._counted(pieces, version, order.supernode))

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


def _read(kind: Any, text: bytes) -> Any:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise pa.ArrowInvalid(f"no {kind.__name__}: {error.errors()[0]['msg']}") from None


def _answer(find: Any) -> Any:
    try:
        return find()
    except Failed as error:  # of the server from which a relay gets its weights
        raise flight.FlightUnavailableError(str(error)) from None
