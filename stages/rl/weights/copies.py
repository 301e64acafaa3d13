"""What a weights server has: the versions in its learner's folder, or those that a relay gets from another server.

Bytes are read from files by position. A file that is replaced is cut to nothing first: its memory is free at once, and
whoever still reads it finds less than a piece and says so.
"""

import os
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NoReturn, Protocol

import pyarrow as pa

from data.transport.client import Caller
from stages.rl.weights.buffers import KEPT, READ, Room, drop, reading
from stages.rl.weights.pieces import Order, Outline
from stages.rl.weights.pull import Failed, Refused, Replaced, outline_of, pull

LOOK_SECONDS = 1.0
"""A reader that waits for a piece looks so often whether its client still lives."""
ORDER_SECONDS = 0.5
"""From one order of a reader to its next one, a version counts as being read."""
PAUSE_SECONDS = (0.05, 2.0)
"""Between two tries of a relay to go on: the first, and the longest."""


class Copies(Protocol):
    """Versions that can be read. ArrowKeyError for one that is not there (any more)."""

    refused: int
    """Pieces that were not as announced."""

    def outline(self, digest: str) -> Outline:
        """Of these weights."""
        ...

    def read(self, order: Order, wanted: Callable[[], bool]) -> Iterator[pa.Buffer]:
        """The ordered pieces, each as soon as it is there. Ends early when they are no longer `wanted`."""
        ...

    def kept(self) -> dict[str, int]:
        """Versions by digest."""
        ...


class FolderCopies:
    """Those that a publisher has put in a folder (`buffers.keep`)."""

    refused = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parse = lru_cache(KEPT + READ)(Outline.model_validate_json)

    def outline(self, digest: str) -> Outline:
        """See `Copies`."""
        try:
            return self._parse((self._folder / f"{digest}.json").read_bytes())
        except (FileNotFoundError, ValueError):  # ValueError: it is being removed
            _gone(digest)

    def read(self, order: Order, wanted: Callable[[], bool]) -> Iterator[pa.Buffer]:
        """See `Copies`."""
        outline = self.outline(order.digest)
        return _pieces(self._folder / order.digest, outline, order, lambda _: wanted())

    def kept(self) -> dict[str, int]:
        """See `Copies`."""
        versions: dict[str, int] = {}
        for path in self._folder.glob("*.json"):
            try:
                versions[path.stem] = self.outline(path.stem).version
            except pa.ArrowKeyError:
                continue  # it has just been removed
        return versions


class RelayedCopies:
    """Those that members have asked for. The first one who asks lets a thread fetch it, and the others wait for that.

    A server that breaks off is asked again, from the piece where it was, as long as the version is kept.
    """

    def __init__(self, announced: Path, folder: Path, supernode: str) -> None:
        """From the server that is announced in `announced`, into `folder`, see `Room`."""
        self._source, self._folder, self._supernode = Caller(announced), folder, supernode
        self._room: Room | None = None
        self._copies: dict[str, _Copy] = {}
        self._lock = threading.Lock()
        self.refused = 0

    def outline(self, digest: str) -> Outline:
        """See `Copies`."""
        return self._copy(digest).outline

    def read(self, order: Order, wanted: Callable[[], bool]) -> Iterator[pa.Buffer]:
        """See `Copies`."""
        copy = self._copy(order.digest)
        return _pieces(copy.path, copy.outline, order, lambda index: copy.wait(index, wanted))

    def kept(self) -> dict[str, int]:
        """See `Copies`."""
        return {digest: copy.outline.version for digest, copy in list(self._copies.items())}

    def close(self) -> None:
        """Remove all of it."""
        if self._room:
            self._room.close()

    def _copy(self, digest: str) -> "_Copy":
        found = self._copies.get(digest)
        if found:
            return found
        with self._lock:
            return self._copies.get(digest) or self._begin(digest)

    def _begin(self, digest: str) -> "_Copy":
        """Raises ArrowKeyError and, when the other server does not answer, Failed."""
        try:
            outline = outline_of(self._source, digest)
        except Replaced:
            _gone(digest)
        self._room = self._room or Room(KEPT * outline.num_bytes, self._folder)
        for other in self._room.surplus(list(self._copies), outline.num_bytes):
            self._copies.pop(other).drop()
        copy = self._copies[digest] = _Copy(self._room.make(digest, outline.num_bytes), outline)
        threading.Thread(target=self._fetch, args=(copy,), name=f"version {outline.version}", daemon=True).start()
        return copy

    def _fetch(self, copy: "_Copy") -> None:
        pause = PAUSE_SECONDS[0]
        with copy.path.open("r+b") as file:
            put = copy.putter(file.fileno())
            while not copy.ended:
                before = copy.have
                try:
                    pull(self._source, copy.outline, before, put, "relay", self._supernode)
                except Replaced:
                    with self._lock:
                        self._copies.pop(copy.outline.digest, None)
                        copy.drop()
                except Failed as error:
                    self.refused += isinstance(error, Refused)
                    pause = PAUSE_SECONDS[0] if copy.have > before else min(2 * pause, PAUSE_SECONDS[1])
                    copy.rest(pause)


class _Copy:
    """A version that is arriving, or has."""

    def __init__(self, path: Path, outline: Outline) -> None:
        self.path, self.outline, self.have, self._gone = path, outline, 0, False
        self._changed = threading.Condition()

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to fetch."""
        return self._gone or self.have == len(self.outline)

    def putter(self, descriptor: int) -> Callable[[int, memoryview], None]:
        """What takes the next piece, and writes it."""

        def put(index: int, data: memoryview) -> None:
            if self._gone:
                raise Replaced(f"version {self.outline.version} has made room for a newer one")
            assert index == self.have
            start = self.outline.span(index).start
            while data:
                written = os.pwrite(descriptor, data, start)
                data, start = data[written:], start + written
            with self._changed:
                self.have += 1
                self._changed.notify_all()

        return put

    def wait(self, index: int, wanted: Callable[[], bool]) -> bool:
        """Until the piece is there; False when it is no longer wanted before."""
        with self._changed:
            while not self._gone and self.have <= index:
                if not wanted():
                    return False
                self._changed.wait(LOOK_SECONDS)
        return True  # of one that is gone, nothing can be read

    def rest(self, seconds: float) -> None:
        """Wait, unless it is dropped."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone, seconds)

    def drop(self) -> None:
        """Give its memory back."""
        with self._changed:
            self._gone = True
            drop(self.path)
            self._changed.notify_all()


def _pieces(path: Path, outline: Outline, order: Order, there: Callable[[int], bool]) -> Iterator[pa.Buffer]:
    """The ordered pieces of a file; `there` waits for one, and says whether to go on."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        _gone(outline.digest)
    reading(file.fileno())
    try:
        for index in range(order.first, min(order.end, len(outline))):
            if not there(index):
                return
            span = outline.span(index)
            data = pa.allocate_buffer(span.stop - span.start)
            if os.preadv(file.fileno(), [memoryview(data)], span.start) < data.size:
                _gone(outline.digest)
            yield data
    finally:
        if order.end < len(outline):  # there will be another order
            lock = threading.Timer(ORDER_SECONDS, file.close)
            lock.daemon = True
            lock.start()
        else:
            file.close()


def _gone(digest: str) -> NoReturn:
    raise pa.ArrowKeyError(f"the weights {digest} are not here, or not any more: there are newer ones")
