"""Weights as pieces of bytes, each with a digest that is checked on arrival. Knows no torch and no network."""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

from pydantic import Field, model_validator

from stages.rl.messages import Message

PIECE = 2**22
"""Bytes of a piece: what a relay has of a version before it hands on the first of it, and what is lost of a stream that
breaks."""
HASH = hashlib.sha256
"""1.5 to 2 GB/s and core where the processor knows it; a third of that elsewhere, in threads beside the learner."""
HEX = 2 * HASH().digest_size


class Outline(Message):
    """What a version of the weights consists of."""

    version: int
    num_bytes: int = Field(gt=0)
    piece_bytes: int = Field(gt=0)
    """Of each piece but the last."""
    pieces: str = Field(pattern=rf"^([0-9a-f]{{{HEX}}})+$")
    """Their digests, one behind the other."""

    @model_validator(mode="after")
    def _is_whole(self) -> "Outline":
        if len(self.pieces) != HEX * -(-self.num_bytes // self.piece_bytes):
            raise ValueError(f"{len(self.pieces) // HEX} digests do not cover {self.num_bytes} bytes")
        return self

    @cached_property
    def digest(self) -> str:
        """Of all bytes, whatever the version is called: that of the list of digests."""
        return HASH(f"{self.num_bytes} {self.piece_bytes} {self.pieces}".encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.pieces) // HEX

    def span(self, index: int) -> slice:
        """Bytes of a piece."""
        return slice(index * self.piece_bytes, min((index + 1) * self.piece_bytes, self.num_bytes))

    def fits(self, index: int, data: memoryview) -> bool:
        """Whether `data` is that piece."""
        span, expected = self.span(index), self.pieces[index * HEX : (index + 1) * HEX]
        return data.nbytes == span.stop - span.start and HASH(data).hexdigest() == expected


def outline(data: memoryview, version: int, piece_bytes: int = PIECE) -> Outline:
    """Of these bytes; the pieces are hashed in as many threads as this process has cores."""
    pieces = [data[start : start + piece_bytes] for start in range(0, data.nbytes, piece_bytes)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found: Iterable[str] = (pool.map if len(pieces) > 1 else map)(_hashed, pieces)
        return Outline(version=version, num_bytes=data.nbytes, piece_bytes=piece_bytes, pieces="".join(found))


def _hashed(data: memoryview) -> str:
    return HASH(data).hexdigest()


class Nothing(Message):
    """No question."""


class Name(Message):
    """Which weights."""

    digest: str = Field(pattern=rf"^[0-9a-f]{{{HEX}}}$")


class Order(Name):
    """Pieces that a member wants, one after another."""

    first: int = Field(ge=0)
    end: int = Field(ge=1)
    """Behind the last."""
    member: str = ""
    supernode: str = ""
    """Of the member: bytes that leave the server's supernode are counted."""


class Traffic(Message):
    """What a weights server has handed out."""

    start: str
    """Of the server's process; another one means that it counts from zero."""
    kept: dict[str, int]
    """Versions that it has, by digest."""
    crossed: dict[int, dict[str, int]]
    """Bytes of each of the last versions that went to each other supernode."""
    refused: int
    """Pieces that came to it torn or corrupted, and were fetched again."""
