"""The groups of a shard on disk: immutable HDF5 segments (`data.segments`), each with many groups and one fsync.

They are there for groups that wait, and for learners that go back to their checkpoint: once one is committed that is
done with all positions of a segment, the segment goes. What was learned from is in the files of its step.

A segment's name says which positions it has, `groups-FIRST-LAST-of-SHARDS-SHARD-START-NUMBER.h5`: a shard opens only
those that may hold positions of its own which are not done with, also where they are of another number of shards.
"""

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

from checkpoints.commit import ASIDE, sync
from data.segments import Column, Origin, Span, read_columns, read_group, read_origins, spans, write_segment
from data.trajectories import Trajectories

FOLDER = "trajectories"


class Name(NamedTuple):
    """What the name of a segment says."""

    first: int
    last: int
    shards: int
    shard: int

    @staticmethod
    def of(path: Path) -> "Name":
        """Of `groups-FIRST-LAST-of-SHARDS-SHARD-...`."""
        _, first, last, _, shards, shard, *_ = path.stem.split("-")
        return Name(int(first), int(last), int(shards), int(shard))

    def may_have(self, cursor: int, shard: int, shards: int) -> bool:
        """Whether one of the positions from `cursor` on may be one of another division into shards."""
        return self.last >= cursor and (self.shard - shard) % math.gcd(self.shards, shards) == 0


@dataclass
class Segment:
    """A file with groups whose fate is open."""

    path: Path
    columns: Mapping[str, Column]
    """Where they lie in it."""
    open: int
    """Groups that may still be trained or thrown away."""
    needed: bool = False
    """It has a group that stays until a checkpoint is done with it: one that was trained on, or another shard's."""


class Journal:
    """Of one shard. `write` and `read` may run in several threads; what the other methods share has a lock."""

    def __init__(
        self, folder: Path, shard: int, shards: int, start: str, attributes: Mapping[str, str | int | float]
    ) -> None:
        """`folder` is the attempt's; `start` names this process for good, and is part of its files' names."""
        self.folder, self.shard, self.shards, self.start = folder / FOLDER, shard, shards, start
        self.attributes = {**attributes, "shard": shard, "shards": shards}
        self.folder.mkdir(parents=True, exist_ok=True)
        self._numbers, self._lock = count(), threading.Lock()
        self._where: dict[Origin, tuple[Segment, Span]] = {}
        self._last: dict[Path, int] = {}
        """The highest position of each segment that may go when a checkpoint is done with it."""

    def remove_torn(self) -> None:
        """Delete what earlier processes of this shard, which are gone, have left half written."""
        remove(self.folder, self.shard, self.shards, f"groups-*{ASIDE}")

    def write(self, origins: Sequence[Origin], parts: Sequence[Trajectories]) -> None:
        """Make groups durable, all of them in one segment."""
        path = self.path([entry.position for entry in origins])
        aside = path.with_name(path.name + ASIDE)
        columns = write_segment(aside, origins, parts, self.attributes)
        segment = Segment(path, columns, len(origins))
        with self._lock:  # so `load` finds it either on disk or not at all
            aside.replace(path)
            self._last[path] = Name.of(path).last
            self._where |= {entry: (segment, span) for entry, span in zip(origins, spans(origins), strict=True)}
        sync(self.folder)

    def load(self, cursor: int) -> list[Origin]:
        """All groups of this shard that may not be done with, from what lies on disk; what was known is forgotten."""
        with self._lock:
            self._where, self._last = {}, {}
            for path in self.files():
                name = Name.of(path)
                if name.may_have(cursor, self.shard, self.shards):
                    self._load(path)
                if name.last < cursor or name.may_have(cursor, self.shard, self.shards):
                    self._last[path] = name.last
            return list(self._where)

    def committed(self, cursor: int) -> None:
        """A checkpoint is there that is done with all positions before `cursor`: segments without others go."""
        with self._lock:
            gone = [path for path, last in self._last.items() if last < cursor]
            for path in gone:
                del self._last[path]
        for path in gone:
            path.unlink(missing_ok=True)  # a kill before it only leaves it for the next start

    def read(self, groups: Sequence[Origin]) -> list[Trajectories]:
        """These groups, in this order, from the disk: what was put lately is in the system's memory."""
        with self._lock:
            found = [self._where[group] for group in groups]
        return [read_group(segment.path, segment.columns, span) for segment, span in found]

    def trained(self, groups: Collection[Origin]) -> None:
        """They stay until a checkpoint is done with them, and nobody will ask for them before the next `load`."""
        self._end(groups, needed=True)

    def throw(self, groups: Collection[Origin]) -> None:
        """They are of no use. A segment that has nothing else goes."""
        self._end(groups, needed=False)

    def files(self) -> list[Path]:
        """All segments, of all shards."""
        return sorted(self.folder.glob("groups-*.h5"))

    def path(self, positions: Sequence[int]) -> Path:
        """A new segment's."""
        span = f"{min(positions):010d}-{max(positions):010d}"
        number = next(self._numbers)
        return self.folder / f"groups-{span}-of-{self.shards:04d}-{self.shard:04d}-{self.start}-{number:06d}.h5"

    def _end(self, groups: Collection[Origin], *, needed: bool) -> None:
        for group in groups:
            with self._lock:
                segment, _ = self._where.pop(group, (None, None))
                if segment is None:  # thrown away before it was settled, after a restore had found it
                    continue
                segment.open -= 1
                segment.needed |= needed
                empty = not segment.open and not segment.needed
                if empty:
                    self._last.pop(segment.path, None)
            if empty:
                segment.path.unlink(missing_ok=True)  # a kill before it only leaves it for the next start

    def _load(self, path: Path) -> None:
        origins = read_origins(path)
        segment = Segment(path, read_columns(path), 0)
        for entry, span in zip(origins, spans(origins), strict=True):
            if entry.position % self.shards != self.shard:
                segment.needed = True
            elif entry not in self._where:
                self._where[entry] = segment, span
                segment.open += 1


def remove_all(attempt: Path, shard: int, shards: int) -> None:
    """Delete the journal of a shard that has ended, once the last step is committed: nobody will learn from it.

    With that of all `shards` it is all that was ever there, also as another number of shards.
    """
    remove(attempt / FOLDER, shard, shards, "groups-*")


def remove(folder: Path, shard: int, shards: int, pattern: str) -> None:
    """Delete those of the segments that fall to a shard."""
    for path in folder.glob(pattern):
        if Name.of(path).shard % shards == shard:
            path.unlink(missing_ok=True)
