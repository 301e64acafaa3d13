"""Calls to a server that may die and come back elsewhere.

    caller = Caller(attempt / "endpoints" / "coordinator.json")  # or an Endpoint
    orders = caller.call("renew", renewal, Orders)  # one try: it may have been done though Unreachable was raised
    orders = caller.call("renew", renewal, Orders, again=30.0)  # for up to 30 s: it may then have been done twice

What the server refuses is a ValueError (`pa.ArrowInvalid`), what it does not have a KeyError (`pa.ArrowKeyError`);
neither is tried again. Several threads may use one Caller.
"""

import random
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyarrow import flight
from pydantic import BaseModel, ValidationError

from data.transport.endpoint import END, INVALID, MISSING, Endpoint, what_is_wrong

CALL_SECONDS = 10.0
STREAM_SECONDS = 60.0
PAUSES = (0.05, 1.0)
"""Seconds between two tries: the first, and the longest; each is twice the one before, see `pauses`."""

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class Unreachable(ConnectionError):
    """The server did not answer, or not in time. Whether it has done what was asked is not known."""


def pauses(first: float = PAUSES[0], longest: float = PAUSES[1]) -> Generator[float]:
    """Seconds to wait before each further try, without end.

    By chance up to a half less than doubled each time: a thousand callers of a server that comes back do not all ask it
    at the same moment.
    """
    pause = first
    while True:
        yield pause * _CHANCE.uniform(0.5, 1.0)
        pause = min(2 * pause, longest)


_CHANCE = random.SystemRandom()
"""Not the one whose seed decides what a run does."""


class Caller:
    """The line to one server."""

    def __init__(self, at: Path | Endpoint, seconds: float = CALL_SECONDS) -> None:
        """`at` is the server's announcement, which is read again after each failure, or where it is for good.

        Each try of a call, of streams too, fails after `seconds`, unless it says otherwise.
        """
        self._at, self._seconds = at, seconds
        self._lock = threading.Lock()
        self._line: tuple[Endpoint, flight.FlightClient] | None = None

    def call(
        self, action: str, message: BaseModel | None, answer: type[M], *, again: float = 0.0, seconds: float = 0.0
    ) -> M:
        """What the server answers. Raises Unreachable, ValueError and KeyError, see above."""
        asked = flight.Action(action, message.model_dump_json().encode() if message is not None else b"{}")

        def one(client: flight.FlightClient, options: flight.FlightCallOptions) -> M:
            (result,) = client.do_action(asked, options)
            return _message(answer, result.body)

        return self._tries(one, again, seconds)

    def put(
        self,
        order: BaseModel,
        schema: pa.Schema,
        batches: Callable[[], Iterable[pa.RecordBatch]],
        answer: type[M],
        *,
        again: float = 0.0,
        seconds: float = 0.0,
    ) -> M:
        """Send a stream, made by `batches` for each try, and return what the server answers to it."""
        descriptor = flight.FlightDescriptor.for_command(order.model_dump_json().encode())

        def one(client: flight.FlightClient, options: flight.FlightCallOptions) -> M:
            writer, reader = client.do_put(descriptor, schema, options)
            with writer:
                for batch in batches():
                    writer.write_batch(batch)
                writer.write_metadata(END)
                writer.done_writing()
                buffer = reader.read()
            if buffer is None:
                raise Unreachable(f"{self._at}: no answer to a stream")
            return _message(answer, buffer)

        return self._tries(one, again, seconds)

    def get(
        self,
        order: BaseModel,
        read: Callable[[Iterator[pa.RecordBatch]], T],
        *,
        again: float = 0.0,
        seconds: float = 0.0,
    ) -> T:
        """What `read` makes of the stream that answers `order`; each try begins it anew."""
        ticket = flight.Ticket(order.model_dump_json().encode())

        def one(client: flight.FlightClient, options: flight.FlightCallOptions) -> T:
            return read(chunk.data for chunk in client.do_get(ticket, options))

        return self._tries(one, again, seconds)

    def close(self) -> None:
        """Hang up. The next call connects anew."""
        with self._lock:
            self._line = None  # what other threads have in flight goes on; the last of them closes it

    def _tries(
        self, one: Callable[[flight.FlightClient, flight.FlightCallOptions], T], again: float, seconds: float
    ) -> T:
        end = time.monotonic() + again
        for pause in pauses():
            try:
                return self._once(one, seconds or self._seconds)
            except Unreachable:
                if time.monotonic() + pause > end:
                    raise
            time.sleep(pause)
        raise AssertionError("pauses have no end")

    def _once(self, one: Callable[[flight.FlightClient, flight.FlightCallOptions], T], seconds: float) -> T:
        endpoint, client = self._connected()
        try:
            with errors():
                return one(client, endpoint.within(seconds))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            if isinstance(error, (pa.ArrowInvalid, pa.ArrowKeyError)):
                raise
            self._drop(client)
            raise Unreachable(f"{endpoint.location}: {_plain(error)}") from error

    def _connected(self) -> tuple[Endpoint, flight.FlightClient]:
        with self._lock:
            if self._line is None:
                endpoint = self._at if isinstance(self._at, Endpoint) else _announced(self._at)
                self._line = endpoint, endpoint.connect()
            return self._line

    def _drop(self, client: flight.FlightClient) -> None:
        """Connect anew, unless another thread has done so already."""
        with self._lock:
            if self._line is not None and self._line[1] is client:
                self._line = None


@contextmanager
def errors() -> Generator[None]:
    """What a `Server` tells of a wrong call, as the error that it is: for calls without a `Caller`."""
    try:
        yield
    except flight.FlightError as error:
        if error.extra_info == INVALID:
            raise pa.ArrowInvalid(_plain(error)) from None
        if error.extra_info == MISSING:
            raise pa.ArrowKeyError(_plain(error)) from None
        raise


def _announced(path: Path) -> Endpoint:
    try:
        return Endpoint.read(path)
    except OSError as error:
        raise Unreachable(f"{path}: nothing is announced: {error}") from error


def _message(kind: type[M], text: pa.Buffer) -> M:
    try:
        return kind.model_validate_json(text.to_pybytes())
    except ValidationError as error:
        raise Unreachable(f"of the answer: {what_is_wrong(kind, error)}") from None


def _plain(error: BaseException) -> str:
    text = str(error)
    for end in (". Detail:", ". gRPC client debug context", ". Client context"):
        text = text.split(end)[0]
    return text
