"""Groups of samples on disk: a trajectory file (`data.trajectories`) that says of each group where it comes from.

It has one more dataset, `origins`, with one entry a group; `groups` says which one a sequence belongs to. Its datasets
lie in the file as they lie in memory, one after the other, so they are written without a copy by one system call each,
and without Python's lock; h5py alone reads them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
import numpy.typing as npt

from data.trajectories import FLAT, FORMAT, Attributes, Trajectories

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
    ]
)
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
    num_bytes: int
    played: float
    """Unix time at which it came."""
    member: str
    """The actor that played it (the last one), in ASCII, at most 64 characters."""


def origin(position: int, attempt: int, whole: bool, played: float, member: str, group: Trajectories) -> Origin:
    """The entry of a `group`."""
    # As a number without a sign, -1, of what nobody chose, is the largest.
    oldest = int(group.versions.view(np.uint32).min(initial=np.uint32(2**32 - 1)).astype(np.int32))
    return Origin(position, attempt, whole, oldest, len(group), len(group.tokens), num_bytes(group), played, member)


def num_bytes(group: Trajectories) -> int:
    """Of its columns."""
    columns = (field.name for field in fields(Trajectories) if field.name != "prompt_ids")
    return sum(getattr(group, name).nbytes for name in columns) + sum(map(len, group.prompt_ids))


def write_segment(
    path: Path, origins: Sequence[Origin], parts: Sequence[Trajectories], attributes: Mapping[str, str | int | float]
) -> None:
    """Write groups to `path` and fsync it; the caller renames it. All have the same number of reward terms."""
    columns = {
        field.name: [getattr(part, field.name) for part in parts]
        for field in fields(Trajectories)
        if field.name not in ("offsets", "groups", "prompt_ids")
    }
    lengths = np.concatenate([part.lengths for part in parts])
    columns["offsets"] = [np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)]
    columns["groups"] = [np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts])]
    columns["prompt_ids"] = [np.array([text.encode("ascii") for part in parts for text in part.prompt_ids], np.bytes_)]
    columns["origins"] = [np.array([_entry(entry) for entry in origins], ORIGIN)]
    places: dict[str, int] = {}
    with h5py.File(path, "w", libver="latest") as file:
        for name, value in sorted({**attributes, "format": FORMAT}.items()):
            file.attrs[name] = value
        for name, arrays in columns.items():
            place = _reserve(file, name, (sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
            if place is not None:
                places[name] = place
    _fill(path, {places[name]: arrays for name, arrays in columns.items() if name in places})


def read_origins(path: Path) -> list[Origin]:
    """What the file has, in order. Reads nothing else of it."""
    with h5py.File(path, "r") as file:
        rows = cast(h5py.Dataset, file["origins"])[:].tolist()
    return [Origin(**dict(zip(ORIGIN.fields or (), (*row[:-1], row[-1].decode("ascii")), strict=True))) for row in rows]


def read_groups(path: Path, places: Sequence[int]) -> list[Trajectories]:
    """The groups at these places of the file, in this order. Reads little else of it."""
    with h5py.File(path, "r") as file:
        datasets = {field.name: cast(h5py.Dataset, file[field.name]) for field in fields(Trajectories)}
        groups, offsets = datasets["groups"][:], datasets["offsets"][:]
        return [_read(datasets, groups, offsets, place) for place in places]


def read_attributes(path: Path) -> Attributes:
    """What holds for the whole file."""
    with h5py.File(path, "r") as file:
        found = {name: value.item() if isinstance(value, np.generic) else value for name, value in file.attrs.items()}
    return {name: value for name, value in found.items() if name != "format"}


def _entry(entry: Origin) -> tuple[Any, ...]:
    values = asdict(entry) | {"member": entry.member.encode("ascii")}
    return tuple(values[name] for name in ORIGIN.fields or ())


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


def _read(
    datasets: Mapping[str, h5py.Dataset], groups: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], place: int
) -> Trajectories:
    first, last = (int(np.searchsorted(groups, place, side)) for side in ("left", "right"))
    columns: dict[str, Any] = {
        name: dataset[offsets[first] : offsets[last]] if name in FLAT else dataset[first:last]
        for name, dataset in datasets.items()
    }
    columns["offsets"] = offsets[first : last + 1] - offsets[first]
    columns["groups"] = np.zeros(last - first, np.int32)
    columns["prompt_ids"] = tuple(text.decode("ascii") for text in columns["prompt_ids"])
    return Trajectories(**columns)
