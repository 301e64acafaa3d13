"""Rollouts on disk: one immutable HDF5 file that h5py alone can read, and that has the same bytes for the same content.

Layout: `tokens`, `mask`, `logprobs`, `versions` are flat, sequence after sequence; sequence i lies at offsets[i] up to
offsets[i + 1]. Everything else has one entry a sequence. What holds for the whole file is in its attributes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
import numpy.typing as npt

FORMAT = "qianka-trajectories-2"
FLAT = ("tokens", "mask", "logprobs", "versions")
"""What has one entry a token."""

Attributes = dict[str, str | int | float]


@dataclass(frozen=True)
class Trajectories:
    """`n` sequences of T tokens in all: prompt and completion ids exactly as they were played."""

    tokens: npt.NDArray[np.int32]
    """[T]"""
    mask: npt.NDArray[np.bool_]
    """[T], true on the tokens that the policy chose."""
    logprobs: npt.NDArray[np.float32]
    """[T], in nats, under the distribution that was sampled from; 0 where `mask` is false."""
    versions: npt.NDArray[np.int32]
    """[T], the policy version that chose the token; -1 where `mask` is false."""
    offsets: npt.NDArray[np.int64]
    """[n + 1], where each sequence begins; the last entry is T."""
    prompt_lengths: npt.NDArray[np.int32]
    """[n], tokens before the first one of the policy."""
    rewards: npt.NDArray[np.float32]
    """[n], the weighted sum of the terms; in an episode of several turns, of the whole episode."""
    terms: npt.NDArray[np.float32]
    """[n, reward terms], each before its weight; their names are in the file's attribute `terms`. NaN where one failed;
    then `graded` is false."""
    finished: npt.NDArray[np.bool_]
    """[n], whether the last turn ended by itself and the environment was done."""
    limits: npt.NDArray[np.int32]
    """[n], tokens that the policy might have chosen."""
    graded: npt.NDArray[np.bool_]
    """[n], false where the grader or a term failed: the reward is then 0 and means nothing."""
    groups: npt.NDArray[np.int32]
    """[n], place of the prompt in its step; sequences of one group have one prompt."""
    seeds: npt.NDArray[np.int64]
    """[n], seed of the request."""
    prompt_ids: tuple[str, ...]
    """[n], `id` of the row that posed the task, in ASCII."""

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.rewards)

    def sequence(self, index: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Tokens of one sequence, and true on those that the policy chose."""
        part = slice(self.offsets[index], self.offsets[index + 1])
        return self.tokens[part], self.mask[part]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """[n], tokens of prompt and completion."""
        return np.diff(self.offsets)

    @property
    def turns(self) -> npt.NDArray[np.int64]:
        """[n], turns of the policy: stretches of tokens that it chose."""
        before = np.concatenate([[False], self.mask])[:-1]
        return np.diff(np.concatenate([[0], np.cumsum(self.mask & ~before)])[self.offsets])

    @property
    def completion_lengths(self) -> npt.NDArray[np.int64]:
        """[n], tokens that the policy chose."""
        return np.diff(np.concatenate([[0], np.cumsum(self.mask)])[self.offsets])

    def pick(self, indices: npt.NDArray[np.int64]) -> "Trajectories":
        """The sequences at these places, in this order."""
        sizes = self.lengths[indices]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][indices] - offsets[:-1], sizes)
        columns: dict[str, Any] = {
            field.name: getattr(self, field.name)[places if field.name in FLAT else indices]
            for field in fields(Trajectories)
            if field.name not in ("offsets", "prompt_ids")
        }
        ids = tuple(self.prompt_ids[index] for index in indices.tolist())
        return Trajectories(**columns, offsets=offsets, prompt_ids=ids)

    def rows(self, first: int, last: int) -> "Trajectories":
        """The sequences from `first` up to `last`, without a copy but for the offsets."""
        begin, end = int(self.offsets[first]), int(self.offsets[last])
        columns: dict[str, Any] = {
            field.name: getattr(self, field.name)[begin:end]
            if field.name in FLAT
            else getattr(self, field.name)[first:last]
            for field in fields(Trajectories)
            if field.name != "offsets"
        }
        return Trajectories(**columns, offsets=self.offsets[first : last + 1] - begin)

    @staticmethod
    def joined(parts: "Sequence[Trajectories]") -> "Trajectories":
        """The sequences of the first, then those of the next, and so on; of one alone itself."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([part.lengths for part in parts])
        columns: dict[str, Any] = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(Trajectories)
            if field.name not in ("offsets", "prompt_ids")
        }
        ids = tuple(prompt for part in parts for prompt in part.prompt_ids)
        return Trajectories(
            **columns, offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), prompt_ids=ids
        )


def write_trajectories(path: Path, trajectories: Trajectories, attributes: Mapping[str, str | int | float]) -> None:
    """Write `trajectories` to `path` (the caller commits it). `attributes` says what made them."""
    assert "format" not in attributes, "the format is written by write_trajectories"
    with h5py.File(path, "w") as file:
        for name, value in sorted({**attributes, "format": FORMAT}.items()):
            file.attrs[name] = value
        for field in fields(Trajectories):
            _write(file, field.name, getattr(trajectories, field.name))


def read_trajectories(path: Path) -> tuple[Trajectories, Attributes]:
    """What `write_trajectories` wrote. Raises ValueError when `path` is not such a file."""
    try:
        with h5py.File(path, "r") as file:
            attributes = {name: _plain(value) for name, value in file.attrs.items()}
            if attributes.pop("format", None) != FORMAT:
                raise ValueError(f"{path}: not a trajectory file ({FORMAT})")
            missing = [field.name for field in fields(Trajectories) if field.name not in file]
            if missing:
                raise ValueError(f"{path}: the datasets {missing} are missing")
            columns = {field.name: _read(file, field.name) for field in fields(Trajectories)}
    except OSError as error:
        raise ValueError(f"{path}: not an HDF5 file that can be read: {error}") from error
    trajectories = Trajectories(**columns)
    _check(path, trajectories)
    return trajectories, attributes


def _write(file: h5py.File, name: str, value: Any) -> None:
    if name == "prompt_ids":
        # Fixed width: strings of variable length go through HDF5's heap, whose bytes are not settled.
        encoded = [text.encode("ascii") for text in value]
        value = np.array(encoded, dtype=f"S{max([1, *map(len, encoded)])}")
    # No times in the file, so equal content has equal bytes. An empty dataset has nothing to compress.
    options = {"compression": "gzip", "shuffle": True} if len(value) else {}
    file.create_dataset(name, data=value, track_times=False, **options)


def _read(file: h5py.File, name: str) -> Any:
    values = cast(h5py.Dataset, file[name])[:]
    return tuple(value.decode("ascii") for value in values) if name == "prompt_ids" else values


def _plain(value: Any) -> str | int | float:
    return value.item() if isinstance(value, np.generic) else value


def _check(path: Path, trajectories: Trajectories) -> None:
    total, count = len(trajectories.tokens), len(trajectories)
    for field in fields(Trajectories):
        expected = total if field.name in FLAT else count + (field.name == "offsets")
        found = len(getattr(trajectories, field.name))
        if found != expected:
            raise ValueError(f"{path}: {field.name} has {found} entries, but {count} sequences need {expected}")
    if trajectories.offsets[0] != 0 or trajectories.offsets[-1] != total or np.any(trajectories.lengths < 0):
        raise ValueError(f"{path}: offsets do not divide the {total} tokens")
