"""The log of every training batch in asynchronous mode: which groups an update learned from, and where they were from.

One row a group, in Parquet files beside the metrics, committed with the checkpoint that covers them; what lies beyond
the checkpoint of a start is dropped, since those updates are made anew. The samples themselves are in
trajectories/step-<step>-rank-<rank>.h5 (`stages.rl.journal`), where `groups` are the places below.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.trajectories import Trajectories

FOLDER = "batches"
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),  # of the update
        ("place", pa.int32()),  # in the batch, from 0: batches take the lowest positions first
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


class BatchLog:
    """Writes the log. Every rank has one; only the first rank writes."""

    def __init__(self, folder: Path, job_is_first: bool) -> None:
        """`folder` is that of the attempt."""
        self.folder, self.writes = folder / FOLDER, job_is_first
        self.rows: list[Logged] = []

    def resume(self, step: int) -> None:
        """Go on after `step`, that of the checkpoint: what lies beyond it is dropped."""
        self.rows = []
        for path in batch_files(self.folder.parent) if self.writes else []:
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()

    def add(self, rows: Sequence[Logged]) -> None:
        """Note the groups of an update."""
        if self.writes:
            self.rows += rows

    def commit(self, step: int) -> None:
        """Make the updates up to `step` safe, just before the checkpoint that covers them."""
        if not self.rows:
            return
        path = self.folder / f"step-{step:06d}.parquet"
        path.parent.mkdir(exist_ok=True)
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*self.rows, strict=True), SCHEMA, strict=True)
        ]
        aside = path.with_name(path.name + ".writing")
        with aside.open("wb") as stream:
            pq.write_table(pa.table(columns, schema=SCHEMA), stream)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(path)
        self.rows = []


def batch_files(folder: Path) -> list[Path]:
    """The committed files of the attempt `folder`, in the order of their steps."""
    return sorted((folder / FOLDER).glob("step-*.parquet"))


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
