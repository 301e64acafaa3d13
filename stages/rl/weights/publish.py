"""The learner hands out its weights: bytes in memory, which the weights server beside it gives to others."""

import itertools
import mmap
import threading
import time
from pathlib import Path
from typing import NamedTuple

from data.transport.client import Caller
from data.transport.endpoint import Endpoint
from stages.rl.messages import Source
from stages.rl.weights.buffers import KEPT, WRITING, Room, drop, keep
from stages.rl.weights.layout import Layout, views
from stages.rl.weights.pieces import Traffic, outline
from stages.rl.weights.pull import Failed, traffic
from stages.trainer.learner import Learner

TRAFFIC_SECONDS = 2.0


class Snapshot(NamedTuple):
    """The weights of one moment, which nobody can fetch yet."""

    version: int
    path: Path
    data: memoryview


class Publisher:
    """Publishes versions of a learner's weights. All ranks make one, and call `publish` and `close` together."""

    def __init__(self, learner: Learner, announced: Path, folder: Path, seconds: float = 600.0) -> None:
        """Rank 0's weights server serves `folder`, and is announced in `announced`, after so many seconds at most."""
        self._learner, self._announced, self._seconds = learner, announced, seconds
        self._layout = Layout(learner.weights())
        self._room = Room(KEPT * self._layout.num_bytes, folder) if learner.job.is_first else None
        self._kept: list[str] = []
        self._numbers, self._lock = itertools.count(), threading.Lock()

    @property
    def folder(self) -> Path:
        """Where rank 0 has the versions."""
        assert self._room, "only rank 0 has it"
        return self._room.folder

    def publish(self, version: int, probe: str = "") -> Source | None:
        """Hand out the weights of now, which are those of `version`, with its `probe` (see `Source`).

        Rank 0 gets the source, the others None. Raises TimeoutError when there is no weights server to ask.
        """
        snapshot = self.snapshot(version)
        return None if snapshot is None else self.hand_over(snapshot, probe)

    def snapshot(self, version: int) -> Snapshot | None:
        """A copy of the weights of now, which may change at once. All ranks call it together; rank 0 gets it."""
        if self._room is None:
            for _ in self._learner.full_weights():
                pass  # ranks gather them together
            return None
        with self._lock:
            self._forget(self._room.surplus(self._kept, self._layout.num_bytes))
        path = self._room.make(f"{WRITING}-{next(self._numbers)}", self._layout.num_bytes)
        with path.open("r+b") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0))
        data[: len(self._layout.header)] = self._layout.header
        places = dict(views(data))
        for name, tensor in self._learner.full_weights():
            places[name].copy_(tensor)
        return Snapshot(version, path, data)

    def hand_over(self, snapshot: Snapshot, probe: str = "") -> Source:
        """Digest a snapshot and let the weights server have it. Any thread of rank 0 may do that, each snapshot once.

        Raises TimeoutError when there is no weights server to ask.
        """
        found = outline(snapshot.data, snapshot.version)
        with self._lock:
            keep(snapshot.path, found)
            self._kept = [*(digest for digest in self._kept if digest != found.digest), found.digest]
        return Source(
            version=snapshot.version,
            digest=found.digest,
            num_bytes=found.num_bytes,
            endpoint=self._endpoint(),
            probe=probe,
        )

    def again(self, source: Source) -> Source:
        """The same at the weights server as it is announced now: it may have died and listen elsewhere."""
        now = Endpoint.read(self._announced) if self._announced.exists() else source.endpoint
        return source.model_copy(update={"endpoint": now})

    def traffic(self) -> Traffic | None:
        """What the weights server has handed out, such as the bytes of each version that went to each supernode.

        None when it does not answer.
        """
        try:
            return traffic(Caller(self._announced, TRAFFIC_SECONDS))
        except Failed:
            return None

    def close(self) -> None:
        """Nothing can be fetched any more."""
        if self._room:
            self._room.close()

    def _forget(self, digests: list[str]) -> None:
        assert self._room
        for digest in digests:
            for path in (self._room.folder / f"{digest}.json", self._room.folder / digest):
                drop(path)
            self._kept.remove(digest)

    def _endpoint(self) -> Endpoint:
        end = time.monotonic() + self._seconds
        while not self._announced.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"no weights server has announced itself in {self._announced}")
            time.sleep(0.05)
        return Endpoint.read(self._announced)
