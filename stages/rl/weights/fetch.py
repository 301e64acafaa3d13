"""An actor gets new weights while its engine goes on generating."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from data.threads import Worker
from data.transport.client import Caller
from data.transport.endpoint import Endpoint
from stages.rl.messages import Source
from stages.rl.weights.layout import views
from stages.rl.weights.pieces import Outline
from stages.rl.weights.pull import Failed, Replaced, outline_of, pull
from stages.rollout.engine import Engine

RELAY_SECONDS = 10.0
"""Without a source that answers, until weights are fetched from the learner's own server."""
TROUBLE_SECONDS = 3.0
"""Without a source that answers, until that is trouble: a server that died is back sooner."""
PAUSE_SECONDS = (0.05, 2.0)
"""Between two tries: the first, and the longest."""


class Arriving:
    """Weights on their way into one buffer, which is used again for each version."""

    def __init__(self, member: str = "", supernode: str = "") -> None:
        self._member, self._supernode = member, supernode
        self._buffer = bytearray()
        self._outline: Outline | None = None
        self._have = 0

    def fetch(self, digest: str, caller: Caller) -> None:
        """Go on with the weights of this digest, from the piece where they are. Raises Replaced and Failed."""
        if self._outline is None or self._outline.digest != digest:
            self._outline, self._have = outline_of(caller, digest), 0
            if len(self._buffer) != self._outline.num_bytes:
                self._buffer = bytearray(self._outline.num_bytes)
        pull(caller, self._outline, self._have, self._put, self._member, self._supernode)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Of the weights that are whole; they share the buffer's memory."""
        assert self._outline and self._have == len(self._outline), "not all of it is there"
        return views(memoryview(self._buffer))

    def _put(self, index: int, data: memoryview) -> None:
        assert self._outline and index == self._have
        self._buffer[self._outline.span(index)] = data
        self._have += 1


class Weights:
    """Fetches the newest weights in a thread of its own. An engine takes them between two steps."""

    def __init__(
        self, announced: Path, member: str = "", supernode: str = "", *, patience: float = RELAY_SECONDS
    ) -> None:
        """`announced` tells where the learner's own server is, for when a relay is gone and no other one comes.

        After so many seconds of patience, that is.
        """
        self._announced, self._patience = announced, patience
        self._arriving = Arriving(member, supernode)
        self._changed = threading.Condition()
        self._wanted: Source | None = None
        self._arrived: Source | None = None
        self._has = ("", -1)
        self._trouble, self._closed = "", False
        self._since: float | None = None
        """When fetches began to fail."""
        self._at: Path | Endpoint = announced
        self._caller = Caller(announced)
        self._thread = Worker(self._run, "weights")

    @property
    def trouble(self) -> str:
        """Why the weights that are wanted have not come for a while; empty when nothing ails."""
        since = self._since
        return self._trouble if since is not None and time.monotonic() > since + TROUBLE_SECONDS else ""

    def want(self, source: Source | None) -> None:
        """What the coordinator says; None: nothing new. The same weights may come from another place now."""
        if source is None or source == self._wanted:
            return
        with self._changed:
            self._wanted = source
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Until weights have arrived, at most so long; whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: self._arrived is not None, seconds)

    def hand_to(self, engine: Engine) -> Source | None:
        """Give the engine what has arrived, if something has: its source. The engine is between two steps.

        Requests in flight go on with the new weights. Raises the ValueError of `Engine.update`, and RuntimeError when
        nothing more will come.
        """
        self._thread.check()
        arrived = self._arrived
        if arrived is None:
            return None
        engine.update(self._arriving.tensors(), arrived.version)
        with self._changed:
            self._arrived, self._has = None, (arrived.digest, arrived.version)
            self._changed.notify_all()
        return arrived

    def close(self) -> None:
        """Fetch no more; what is under way ends with its call."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _missing(self) -> Source | None:
        """What is wanted, when there is room for it and it is not there yet."""
        wanted = self._wanted
        return wanted if wanted and self._arrived is None and (wanted.digest, wanted.version) != self._has else None

    def _run(self) -> None:
        pause = PAUSE_SECONDS[0]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._missing() is not None)
                source = self._missing()
            if self._closed or source is None:
                return
            try:
                self._arriving.fetch(source.digest, self._from(source))
            except Replaced:
                self._pause(source, PAUSE_SECONDS[1])  # the coordinator tells of the newer ones
            except Failed as error:
                self._trouble, self._since = str(error), self._since or time.monotonic()
                self._pause(source, pause)
                pause = min(2 * pause, PAUSE_SECONDS[1])
            else:
                self._since, pause = None, PAUSE_SECONDS[0]
                with self._changed:
                    self._arrived = source
                    self._changed.notify_all()

    def _from(self, source: Source) -> Caller:
        """Where to fetch: from the learner's own server once the source has failed for too long."""
        late = self._since is not None and time.monotonic() > self._since + self._patience
        at = self._announced if late else source.endpoint
        if at != self._at:
            self._at, self._caller = at, Caller(at)
        return self._caller

    def _pause(self, source: Source, seconds: float) -> None:
        """Wait until something else is wanted, or the same from elsewhere."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wanted != source, seconds)
