"""Groups of samples on disk: a trajectory file (`data.trajectories`) that says of each group where it comes from.

It has one more dataset, `origins`, with one entry a group; `groups` says which one a sequence belongs to. Its datasets
lie in the file as they lie in memory, one after the other, so they are written without a copy by one system call each,
and without Python's lock; h5py alone reads them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, cast

import h5py
import numpy as np
import numpy.typing as npt

from data.trajectories import FLAT, FORMAT, Trajectories

ORIGIN = np.dtype(
    [
        ("position", np.int64),
        ("attempt", np.int32),
        ("whole", np.bool_),
        ("oldest", np.int32),
        ("samples", np.int32),
        ("tokens", np.int64),
        ("num_bytes", np.int64),
        ("played", np.float64),
        ("member", "S64"),
        ("lease", "S32"),
    ]
)
COLUMNS = tuple(field.name for field in fields(Trajectories))
VECTORS = 1024
"""Buffers that one system call takes (IOV_MAX of Linux)."""


@dataclass(frozen=True)
class Origin:
    """What is known of a group beside its trajectories."""

    position: int
    attempt: int
    whole: bool
    """False: its samples are half played."""
    oldest: int
    """The oldest version of its tokens; -1 without one."""
    samples: int
    tokens: int
    """Of all its sequences, prompts as well."""
    num_bytes: int
    played: float
    """Unix time at which it came."""
    member: str
    """The actor that played it (the last one), in ASCII, at most 64 characters."""
    lease: str
    """Under which it did, at most 32."""

    @property
    def key(self) -> tuple[int, int]:
        """What names it: position and attempt."""
        return self.position, self.attempt


class Column(NamedTuple):
    """Where the entries of a dataset lie in its file."""

    place: int
    """Of the first one, in bytes; -1 without any."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Of an entry."""


class Span(NamedTuple):
    """The entries of a file that are a group's."""

    first: int
    """Sample."""
    last: int
    """The sample after the last one."""
    begin: int
    """Token."""
    end: int


def origin(
    position: int, attempt: int, whole: bool, played: float, member: str, lease: str, group: Trajectories
) -> Origin:
    """The entry of a `group`."""
    # As a number without a sign, -1, of what nobody chose, is the largest.
    oldest = int(group.versions.view(np.uint32).min(initial=np.uint32(2**32 - 1)).astype(np.int32))
    samples, tokens = len(group), len(group.tokens)
    return Origin(position, attempt, whole, oldest, samples, tokens, num_bytes(group), played, member, lease)


def num_bytes(group: Trajectories) -> int:
    """Of its columns."""
    columns = (field.name for field in fields(Trajectories) if field.name != "prompt_ids")
    return sum(getattr(group, name).nbytes for name in columns) + sum(map(len, group.prompt_ids))


def write_segment(
    path: Path, origins: Sequence[Origin], parts: Sequence[Trajectories], attributes: Mapping[str, str | int | float]
) -> dict[str, Column]:
    """Write groups to `path` and fsync it; the caller renames it. All have the same number of reward terms."""
    columns = {
        name: [getattr(part, name) for part in parts]
        for name in COLUMNS
        if name not in ("offsets", "groups", "prompt_ids")
    }
    lengths = np.concatenate([part.lengths for part in parts])
    columns["offsets"] = [np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)]
    columns["groups"] = [np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts])]
    columns["prompt_ids"] = [np.array([text.encode("ascii") for part in parts for text in part.prompt_ids], np.bytes_)]
    columns["origins"] = [np.array([_entry(entry) for entry in origins], ORIGIN)]
    found: dict[str, Column] = {}
    with h5py.File(path, "w", libver="latest") as file:
        for name, value in sorted({**attributes, "format": FORMAT}.items()):
            file.attrs[name] = value
        for name, arrays in columns.items():
            shape, dtype = arrays[0].shape[1:], arrays[0].dtype
            place = _reserve(file, name, (sum(map(len, arrays)), *shape), dtype)
            found[name] = Column(-1 if place is None else place, dtype, shape)
    _fill(path, {found[name].place: arrays for name, arrays in columns.items() if found[name].place >= 0})
    return found


def read_origins(path: Path) -> list[Origin]:
    """What the file has, in order. Reads nothing else of it."""
    with h5py.File(path, "r") as file:
        rows: list[tuple[Any, ...]] = cast(h5py.Dataset, file["origins"])[:].tolist()
    return [Origin(*map(_value, row)) for row in rows]


def read_columns(path: Path) -> dict[str, Column]:
    """Where they lie."""
    with h5py.File(path, "r") as file:
        datasets = {name: cast(h5py.Dataset, file[name]) for name in COLUMNS}
        places = {name: dataset.id.get_offset() for name, dataset in datasets.items()}
        return {
            name: Column(-1 if places[name] is None else places[name], dataset.dtype, dataset.shape[1:])
            for name, dataset in datasets.items()
        }


def spans(origins: Sequence[Origin]) -> list[Span]:
    """The parts of a file that its groups are."""
    samples = [0, *accumulate(entry.samples for entry in origins)]
    tokens = [0, *accumulate(entry.tokens for entry in origins)]
    return [Span(*samples[place : place + 2], *tokens[place : place + 2]) for place in range(len(origins))]


def read_group(path: Path, columns: Mapping[str, Column], span: Span) -> Trajectories:
    """A group of the file; reads nothing else of it. OSError where the file is shorter."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found: dict[str, Any] = {
            name: _read(descriptor, columns[name], *(span[2:] if name in FLAT else span[:2]))
            for name in COLUMNS
            if name not in ("offsets", "groups")
        }
        offsets = _read(descriptor, columns["offsets"], span.first, span.last + 1)
    finally:
        os.close(descriptor)
    found["offsets"] = offsets - span.begin
    found["groups"] = np.zeros(span.last - span.first, np.int32)
    found["prompt_ids"] = tuple(text.decode("ascii") for text in found["prompt_ids"].tolist())
    return Trajectories(**found)


def _value(cell: Any) -> Any:
    return cell.decode("ascii") if isinstance(cell, bytes) else cell


def _entry(entry: Origin) -> tuple[Any, ...]:
    cells = (getattr(entry, name) for name in ORIGIN.fields or ())
    return tuple(cell.encode("ascii") if isinstance(cell, str) else cell for cell in cells)


def _reserve(file: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int | None:
    """A dataset that has its place in the file and no content yet; that place, in bytes."""
    space = h5py.h5s.create_simple(shape)
    return h5py.h5d.create(file.id, name.encode(), _kind(dtype), space, _layout()).get_offset()


@lru_cache(maxsize=64)
def _kind(dtype: np.dtype[Any]) -> Any:
    return h5py.h5t.py_create(dtype, logical=True)


@lru_cache(maxsize=1)
def _layout() -> Any:
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.CONTIGUOUS)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    layout.set_obj_track_times(False)
    return layout


def _fill(path: Path, arrays: Mapping[int, Sequence[npt.NDArray[Any]]]) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for place, parts in arrays.items():
            views = [np.ascontiguousarray(part).reshape(-1).view(np.uint8).data for part in parts if part.size]
            for start in range(0, len(views), VECTORS):
                place += _write_all(descriptor, views[start : start + VECTORS], place)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, views: list[memoryview], place: int) -> int:
    total = sum(map(len, views))
    written = os.pwritev(descriptor, views, place)
    if written < total:  # more than 2 GB at once, or a signal
        rest = memoryview(b"".join(views))[written:]
        while rest:
            count = os.pwrite(descriptor, rest, place + total - len(rest))
            rest = rest[count:]
    return total


def _read(descriptor: int, column: Column, first: int, last: int) -> npt.NDArray[Any]:
    """The entries from `first` up to `last`."""
    found = np.empty((last - first, *column.shape), column.dtype)
    room, place = found.reshape(-1).view(np.uint8).data, column.place
    place += first * (found.nbytes // max(len(found), 1))
    while room:
        count = os.preadv(descriptor, [room], place)
        if not count:
            raise OSError(f"a segment ends before byte {place:,}")
        room, place = room[count:], place + count
    return found
