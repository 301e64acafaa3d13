"""An engine that is a server in another process, which others use too."""

import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight
from torch import Tensor

from data.transport.client import Caller, Unreachable, errors
from data.transport.endpoint import Endpoint
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Request, room
from stages.rollout.vllm import wire
from stages.rollout.vllm.engine import NO_WEIGHTS
from stages.rollout.vllm.launch import Process, last_lines

LOOK_SECONDS = 0.05
LONGEST_SECONDS = 24 * 3600.0
"""Of one call. A server that ends is noticed at once, since it is on this machine."""


class ServerEngine:
    """The client of a vLLM server.

    One client of a server, the one that has started it, sends it weights and lets it sleep; the others wait until the
    server has the version that they are told.
    """

    def __init__(
        self, announced: Path, context: int, log: Path, process: Process | None = None, *, seconds: float = 600.0
    ) -> None:
        """For the server that is announced in `announced`; `process` is the server where this client has started it.

        A client that has not waits for new weights for so many seconds.
        """
        self.version, self.context, self.progress = NO_WEIGHTS, context, 0
        self._log, self._process, self._seconds = log, process, seconds
        self._endpoint = Endpoint.read(announced)
        # An update of large weights, and sleep, which waits for others, may take their time.
        self._caller, self._client = Caller(self._endpoint, LONGEST_SECONDS), self._endpoint.connect()
        self._new: dict[int, Request] = {}
        self._cancel: list[int] = []
        self._sent: set[int] = set()
        self._order = wire.Order(sampling=SamplingConfig())
        self._exchange: tuple[Any, Any] | None = None

    def start(self, sampling: SamplingConfig, *, greedy: bool = False, noise: float = 0.0) -> None:
        """See `Engine`."""
        assert not self._new and not self._sent, "requests are in flight"
        self._order = wire.Order(sampling=sampling, greedy=greedy, noise=noise)

    def add(self, key: int, request: Request) -> None:
        """See `Engine`."""
        assert key not in self._new and key not in self._sent, f"request {key} is in flight"
        room(key, request, self._order.sampling, self.context)
        self._new[key] = request

    def step(self) -> list[tuple[int, Completion]]:
        """See `Engine`: send what is new, and wait a moment for what has ended."""
        if not self._new and not self._sent:
            return []
        with self._errors():
            writer, reader = self._exchange = self._exchange or self._connect()
            batch = wire.requests_batch(list(self._new.items()))
            self._sent |= self._new.keys()
            order = self._order.model_copy(update={"cancel": tuple(self._cancel)})
            writer.write_with_metadata(batch, order.model_dump_json().encode())
            self._new, self._cancel = {}, []
            answer = reader.read_chunk()
            self.progress = int(answer.app_metadata.to_pybytes())
            ended = wire.read_completions(answer.data)
        self._sent -= {key for key, _ in ended}
        return ended

    def cancel(self, keys: Iterable[int]) -> None:
        """See `Engine`."""
        self._cancel += keys

    def release(self, sessions: Iterable[int]) -> None:
        """See `Engine`. vLLM itself drops what was not used for longest when it needs the room."""

    def update(self, weights: Iterable[tuple[str, Tensor]] | None, version: int) -> None:
        """See `Engine`."""
        assert weights is not None, "the server has weights of its own"
        if self._process:
            with self._errors():
                self._caller.put(
                    wire.Version(version=version), wire.WEIGHTS, lambda: wire.weights_batches(weights), wire.Version
                )
        else:
            for _ in weights:
                pass  # ranks gather them together
            end = time.monotonic() + self._seconds
            while (found := self._act("version")) != version:
                if time.monotonic() > end:
                    raise RuntimeError(
                        f"the vLLM server has weights of version {found}, and after {self._seconds:.0f} s still not "
                        f"those of {version}; the rank that sends them has failed or is slow\n{last_lines(self._log)}"
                    )
                time.sleep(LOOK_SECONDS)
        self.version = version

    def sleep(self) -> None:
        """See `Engine`."""
        if self._process:
            self._act("sleep")

    def wake(self) -> None:
        """See `Engine`."""
        if self._process:
            self._act("wake")

    def close(self) -> None:
        """See `Engine`: ends the server too, where this client has started it."""
        if self._exchange:
            with suppress(flight.FlightError):  # the server may be gone already
                self._exchange[0].close()
        self._client.close()
        if self._process:
            self._process.stop()

    def _connect(self) -> tuple[Any, Any]:
        descriptor = flight.FlightDescriptor.for_command(b"play")
        writer, reader = self._client.do_exchange(descriptor, self._endpoint.options)
        writer.begin(wire.REQUESTS)
        return writer, reader

    def _act(self, name: str) -> int:
        with self._errors():
            return self._caller.call(name, None, wire.Version).version

    @contextmanager
    def _errors(self) -> Generator[None]:
        """What the server says is wrong is a ValueError; that it is gone a RuntimeError with its last words."""
        try:
            with errors():
                yield
        except pa.ArrowInvalid as error:
            raise ValueError(str(error)) from None
        except (flight.FlightError, Unreachable) as error:
            raise RuntimeError(f"the vLLM server has ended or failed: {error}\n{last_lines(self._log)}") from error
