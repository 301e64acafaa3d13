"""Getting weights from a server, piece by piece: what relays and actors have in common. Knows no torch."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import flight
from pydantic import ValidationError

from data.transport.endpoint import HEADER, Endpoint
from stages.rl.weights.pieces import Name, Order, Outline, Traffic

WINDOW = 64
"""Pieces of one call."""
CALL_SECONDS = 30.0
"""Of one call. What has come until then is kept; a source from which no piece came in that time is given up."""
ASK_SECONDS = 10.0
"""Until a source has said what a version consists of."""


class Replaced(Exception):
    """The source does not have these weights any more: there are newer ones."""


class Failed(RuntimeError):
    """The source does not answer, or breaks off: another one may do better."""


class Refused(Failed):
    """What came is not what was announced: torn or corrupted."""


def outline_of(endpoint: Endpoint, digest: str) -> Outline:
    """What the weights with this digest consist of. Raises Replaced and Failed."""
    text = _ask(endpoint, "outline", Name(digest=digest).model_dump_json())
    try:
        found = Outline.model_validate_json(text)
    except ValidationError as error:
        raise Refused(f"{endpoint.location} describes weights by no outline: {error}") from error
    if found.digest != digest:
        raise Refused(f"{endpoint.location} describes other weights than {digest}")
    return found


def traffic(endpoint: Endpoint) -> Traffic:
    """What a server has handed out. Raises Failed."""
    return Traffic.model_validate_json(_ask(endpoint, "traffic", ""))


def pull(
    endpoint: Endpoint,
    outline: Outline,
    first: int,
    put: Callable[[int, memoryview], None],
    member: str = "",
    supernode: str = "",
    *,
    seconds: float = CALL_SECONDS,
) -> None:
    """Get the pieces from `first` to the last, in order; each goes to `put` once its digest is right.

    Raises Replaced, Failed and Refused; `put` then has all that came before.
    """
    options = _options(endpoint, seconds)
    with _failures(endpoint), flight.FlightClient(endpoint.location) as client:
        while first < len(outline):
            begin, end = first, min(first + WINDOW, len(outline))
            order = Order(digest=outline.digest, first=first, end=end, member=member, supernode=supernode)
            ticket = flight.Ticket(order.model_dump_json().encode())
            try:
                for chunk in client.do_get(ticket, options):
                    data = _bytes(chunk.data)
                    if first >= end or not outline.fits(first, data):
                        raise Refused(f"{endpoint.location}: piece {first} of version {outline.version} is not as sent")
                    put(first, data)
                    first += 1
            except flight.FlightTimedOutError:
                if first == begin:
                    raise
            if first == begin:
                raise Failed(f"{endpoint.location} has handed out nothing")


def _bytes(batch: pa.RecordBatch) -> memoryview:
    column: Any = batch.column(0)
    if column.type != pa.uint8() or column.null_count:
        raise Refused("a piece is no bytes")
    return memoryview(column.to_numpy())


def _ask(endpoint: Endpoint, action: str, body: str) -> bytes:
    with _failures(endpoint), flight.FlightClient(endpoint.location) as client:
        (answer,) = client.do_action(flight.Action(action, body.encode()), _options(endpoint, ASK_SECONDS))
        return answer.body.to_pybytes()


def _options(endpoint: Endpoint, seconds: float) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(timeout=seconds, headers=[(HEADER.encode(), endpoint.token.encode())])


@contextmanager
def _failures(endpoint: Endpoint) -> Generator[None]:
    try:
        yield
    except pa.ArrowKeyError as error:
        raise Replaced(str(error)) from error
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        raise Failed(f"{endpoint.location}: {error}") from error
