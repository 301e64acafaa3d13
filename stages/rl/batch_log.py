"""The log of every training batch in asynchronous mode: which groups an update learned from, and where they were from.

One row a group (`stages.rl.rows`). The samples themselves are in trajectories/step-<step>-rank-<rank>.h5
(`stages.rl.step_files`), where `groups` are the places below.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.trajectories import Trajectories
from stages.rl.rows import RowLog, row_files

FOLDER = "batches"
REJECTED = -1
"""Place of a group that was taken, and from which there was nothing to learn (dynamic sampling)."""
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),  # of the update
        ("place", pa.int32()),  # in the batch, from 0: batches take the lowest positions first; or REJECTED
        ("position", pa.int64()),  # in the stream of prompts
        ("attempt", pa.int32()),
        ("prompt_id", pa.string()),  # of the row
        ("rank", pa.int32()),  # that learned from it
        ("shard", pa.int32()),  # that had it
        ("version", pa.int32()),  # of the policy before the update
        ("oldest", pa.int32()),  # version of its tokens
        ("newest", pa.int32()),
        ("samples", pa.int32()),
        ("tokens", pa.int64()),  # of prompts and completions
        ("digest", pa.string()),  # of its samples: `digest`
        ("member", pa.string()),  # the actor that has put it
        ("lease", pa.string()),  # under which it was played
    ]
)
CONTENT = (
    *("tokens", "mask", "logprobs", "versions", "offsets", "prompt_lengths", "rewards", "terms"),
    *("finished", "limits", "graded", "seeds"),
)
"""Fields of trajectories that an update reads, and with them the digest."""


class Logged(NamedTuple):
    """A row of the log; see SCHEMA."""

    step: int
    place: int
    position: int
    attempt: int
    prompt_id: str
    rank: int
    shard: int
    version: int
    oldest: int
    newest: int
    samples: int
    tokens: int
    digest: str
    member: str = ""
    lease: str = ""


class BatchLog(RowLog):
    """Writes the log."""

    def __init__(self, folder: Path, job_is_first: bool) -> None:
        """`folder` is that of the attempt."""
        super().__init__(folder / FOLDER, SCHEMA, job_is_first)


def batch_files(folder: Path) -> list[Path]:
    """The committed files of the attempt `folder`, in the order of their steps."""
    return row_files(folder / FOLDER)


def read_batches(folder: Path) -> pa.Table:
    """All committed rows of the attempt `folder`, in order. ValueError when there are none."""
    files = batch_files(folder)
    if not files:
        raise ValueError(f"{folder / FOLDER}: no log of batches (*.parquet); only asynchronous mode writes it")
    return pa.concat_tables([pq.read_table(path) for path in files])


def digest(trajectories: Trajectories) -> bytes:
    """32 bytes (SHA-256) that say what an update learns from a group, whatever place it has in a batch."""
    found = hashlib.sha256()
    for name in CONTENT:
        values = np.ascontiguousarray(getattr(trajectories, name))
        found.update(f"{name} {values.dtype.str} {values.shape} ".encode())
        found.update(values.tobytes())
    return found.digest()
