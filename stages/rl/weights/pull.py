"""Getting weights from a server, piece by piece: what relays and actors have in common. Knows no torch."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from data.transport.client import Caller, Unreachable
from stages.rl.weights.pieces import Name, Order, Outline, Traffic

WINDOW = 16
"""Pieces of one call, few enough for slow links: what was under way when its time is over comes again."""
CALL_SECONDS = 30.0
"""Of one call. What has come until then is kept; a source from which no piece came in that time is given up."""


class Replaced(Exception):
    """The source does not have these weights any more: there are newer ones."""


class Failed(RuntimeError):
    """The source does not answer, or breaks off: another one may do better."""


class Refused(Failed):
    """What came is not what was announced: torn or corrupted."""


def outline_of(caller: Caller, digest: str) -> Outline:
    """What the weights with this digest consist of. Raises Replaced and Failed."""
    with _failures():
        found = caller.call("outline", Name(digest=digest), Outline)
    if found.digest != digest:
        raise Refused(f"a source describes other weights than {digest}")
    return found


def traffic(caller: Caller) -> Traffic:
    """What a server has handed out. Raises Failed."""
    with _failures():
        return caller.call("traffic", None, Traffic)


def pull(
    caller: Caller,
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

    def read(batches: Iterator[pa.RecordBatch]) -> None:
        nonlocal first
        for batch in batches:
            data = _bytes(batch)
            if first >= end or not outline.fits(first, data):
                raise Refused(f"piece {first} of version {outline.version} is not as announced")
            put(first, data)
            first += 1

    while first < len(outline):
        begin, end = first, min(first + WINDOW, len(outline))
        order = Order(digest=outline.digest, first=first, end=end, member=member, supernode=supernode)
        with _failures():
            try:
                caller.get(order, read, seconds=seconds)
            except Unreachable:
                if first == begin:
                    raise
        if first == begin:
            raise Failed("a source has handed out nothing")


def _bytes(batch: pa.RecordBatch) -> memoryview:
    column: Any = batch.column(0)
    if column.type != pa.uint8() or column.null_count:
        raise Refused("a piece is no bytes")
    return memoryview(column.to_numpy())


@contextmanager
def _failures() -> Generator[None]:
    try:
        yield
    except pa.ArrowKeyError as error:
        raise Replaced(str(error)) from error
    except pa.ArrowInvalid as error:
        raise Refused(str(error)) from error
    except Unreachable as error:
        raise Failed(str(error)) from error
