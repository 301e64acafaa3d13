"""The base of all servers: whoever calls has the token, sends what is asked for, and learns nothing from an error.

A server derives from `Server` and hands it its actions, each with the message that it takes and what answers it:

    class Counter(Server):
        def __init__(self, host: str) -> None:
            super().__init__(host, {"add": Action(Number, self._add)})

        def _add(self, number: Number) -> Number: ...

        def put(self, order: bytes, batches: Incoming) -> BaseModel: ...  # do_put, where it takes streams

    serve(Counter("127.0.0.1"), Path("endpoints/counter.json"), parent=os.getppid())

Flight calls each method in a thread of its own: what threads share needs a lock. What a method raises for the caller's
mistake is `pa.ArrowInvalid` (ValueError too) or `pa.ArrowKeyError` (KeyError); other errors are printed here and are
"the server failed" to the caller.
"""

import os
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyarrow import flight
from pydantic import BaseModel, ValidationError

from data.transport.endpoint import END, INVALID, MISSING, Endpoint, what_is_wrong
from data.transport.guard import Guard
from data.transport.tls import self_signed

PARENT_SECONDS = 0.5
MESSAGE_BYTES = 2**22
"""Of the JSON of one call."""
BATCH_BYTES = 2**28
"""Of one batch of a stream."""

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Action(Generic[M]):
    """What a server does with a message."""

    takes: type[M]
    answer: Callable[[M], BaseModel]


class Incoming:
    """The batches of a stream that comes in: their schema, and one after another. ArrowInvalid for one too large."""

    def __init__(self, reader: Any, largest: int) -> None:
        self._reader, self._largest = reader, largest

    @property
    def schema(self) -> pa.Schema:
        """What the caller says of them."""
        return self._reader.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Each once. FlightCancelledError when the caller is gone before the end: to Flight that looks like the end."""
        for chunk in self._reader:
            if chunk.data is None:
                if chunk.app_metadata is not None and chunk.app_metadata.to_pybytes() == END:
                    return
                raise pa.ArrowInvalid("a batch is missing")
            if chunk.data.nbytes > self._largest:
                raise pa.ArrowInvalid(f"a batch has {chunk.data.nbytes:,} bytes, and {self._largest:,} are allowed")
            yield chunk.data
        raise flight.FlightCancelledError("the stream broke off")


class Server(flight.FlightServerBase):
    """See above. It listens from its construction on, at a port that the system chooses."""

    def __init__(
        self,
        host: str,
        actions: Mapping[str, Action[Any]] | None = None,
        *,
        tls: bool = False,
        message_bytes: int = MESSAGE_BYTES,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        certificate, key = self_signed() if tls else ("", "")
        callers, callers_key = self_signed() if tls else ("", "")
        token, start = secrets.token_hex(32), secrets.token_hex(8)
        super().__init__(
            Endpoint(host, 0, token, start, certificate).location,
            tls_certificates=[(certificate.encode(), key.encode())] if tls else None,
            verify_client=tls,
            root_certificates=callers.encode() if tls else None,
            middleware={"guard": Guard(token, start)},
        )
        self.endpoint = Endpoint(host, self.port, token, start, certificate, callers + callers_key)
        self._actions, self._message_bytes, self._batch_bytes = actions or {}, message_bytes, batch_bytes

    def put(self, order: bytes, batches: Incoming) -> BaseModel:
        """What answers a stream that comes in; `order` is the JSON that came with it, see `message`."""
        raise pa.ArrowInvalid("this server takes no streams")

    def get(self, order: bytes, wanted: Callable[[], bool]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The stream that is asked for; `wanted` tells whether the caller still waits."""
        raise pa.ArrowInvalid("this server hands out no streams")

    def message(self, kind: type[M], text: bytes) -> M:
        """The message in `text`. ArrowInvalid, without what it says, where it is none."""
        if len(text) > self._message_bytes:
            raise pa.ArrowInvalid(f"a message has {len(text):,} bytes, and {self._message_bytes:,} are allowed")
        try:
            return kind.model_validate_json(text)
        except ValidationError as error:
            raise pa.ArrowInvalid(what_is_wrong(kind, error)) from None

    # What Flight calls

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        """See `Action`."""
        with refusals():
            asked = self._actions.get(action.type)
            if asked is None:
                raise pa.ArrowInvalid(f"there is no such action; there are {', '.join(sorted(self._actions))}")
            answer = asked.answer(self.message(asked.takes, action.body.to_pybytes())).model_dump_json().encode()
        return iter([answer])

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        """See `put`."""
        with refusals():
            order = descriptor.command
            if not isinstance(order, bytes):
                raise pa.ArrowInvalid("a stream comes with an order")
            answer = self.put(order, Incoming(reader, self._batch_bytes))
            with suppress(OSError):  # whoever put it is gone, and asks again if it comes back
                writer.write(pa.py_buffer(answer.model_dump_json().encode()))

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        """See `get`."""
        with refusals():
            schema, batches = self.get(ticket.ticket, lambda: not context.is_cancelled())
        return flight.GeneratorStream(schema, _handed_out(batches))


def serve(server: Server, announce: Path, parent: int) -> None:
    """Announce the server, and end this process with the one that started it. Does not return."""
    server.endpoint.announce(announce)
    end_with(parent)


def end_with(parent: int) -> None:
    """Wait until `parent` is no longer the parent of this process, and end it. Does not return."""
    threads_end_the_process()
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)  # Flight's threads may be in the middle of a call


def threads_end_the_process() -> None:
    """From now on a thread that fails does: who started the process starts another, and half a server is none."""

    def end(failed: threading.ExceptHookArgs) -> None:
        traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
        os._exit(1)

    threading.excepthook = end


def ends_with(parent: int) -> None:
    """`end_with` in a thread of its own."""
    threading.Thread(target=end_with, args=(parent,), name="parent", daemon=True).start()


def _handed_out(batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    with refusals():
        yield from batches


@contextmanager
def refusals() -> Generator[None]:
    """Tell the caller in words what he did wrong, and of a failure of ours only that it happened: no traceback."""
    try:
        yield
    except (flight.FlightError, GeneratorExit):
        raise
    except pa.ArrowKeyError as error:
        raise flight.FlightServerError(str(error), MISSING) from None
    except ValueError as error:  # pa.ArrowInvalid is one
        raise flight.FlightServerError(str(error), INVALID) from None
    except BaseException as error:
        traceback.print_exc()
        raise flight.FlightServerError("the server failed; its log says why") from error
