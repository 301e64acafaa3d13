"""The row that every stage reads: a task, its right answer, and a demonstration to learn from."""

import hashlib
from collections.abc import Mapping
from typing import TypedDict

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("answer", pa.string(), nullable=False),
        pa.field("trace", pa.string(), nullable=False),
        pa.field("level", pa.int32(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
    ]
)


class Row(TypedDict):
    """One row of `SCHEMA`."""

    id: str
    """Digest of the canonical prompt (`row_id`): equal for prompts that pose the same task."""
    prompt: str
    answer: str
    trace: str
    """A demonstration that ends with an answer, perhaps a wrong one; empty when there is none."""
    level: int
    """How hard, by the environment's own measure."""
    seed: int
    """`environment.reset(seed)` gives the row again; -1 for the user's rows."""
    source: str
    """The environment's name, or file and line of the user's row."""


def row_id(canonical: str) -> str:
    """The id of the task with this canonical prompt: the first 128 bits of its SHA-256, in hexadecimal."""
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def completion_of(row: Mapping[str, str] | Row) -> str:
    """What a model should learn to say after the prompt: the demonstration, or the answer where there is none."""
    return row["trace"] or row["answer"]


def id_keys(ids: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The leading 64 bits of each id, uint64 [n]: the number by which rows are compared and split."""
    return np.array([int(text[:16], 16) for text in ids.to_pylist()], dtype=np.uint64)
