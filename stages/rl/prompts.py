"""Which prompts a step plays, and with which seeds: functions of the seed, the cursor, and what was set aside."""

import hashlib
from collections.abc import Set
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

STREAM = 1
"""Keeps these permutations apart from those of other stages with the same seed."""


def draw_prompts(
    seed: int, ids: pa.ChunkedArray, cursor: int, count: int, set_aside: Set[str]
) -> tuple[list[int], int]:
    """The rows of the next `count` prompts after `cursor`, and the cursor behind them.

    The prompts are one permutation of all rows after another. The cursor counts prompts over all ranks, so a run that
    goes on with another number of ranks goes on at the same prompt. Prompts whose id is `set_aside` are passed over;
    ValueError when there are no others.
    """
    if all(prompt.as_py() in set_aside for prompt in ids):
        raise none_left(len(ids))
    rows: list[int] = []
    while len(rows) < count:
        row = row_at(seed, cursor, len(ids))
        cursor += 1
        if ids[row].as_py() not in set_aside:
            rows.append(row)
    return rows, cursor


def row_at(seed: int, position: int, count: int) -> int:
    """The row at a position of the stream of prompts, of which there are `count`."""
    epoch, place = divmod(position, count)
    return int(_permutation(seed, epoch, count)[place])


def request_seed(seed: int, step: int, slot: int, sample: int) -> int:
    """A seed of 63 bits that depends on nothing but these four, so not on how many ranks share the work."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}/{slot}/{sample}".encode()).digest()[:8]) >> 1


def none_left(count: int) -> ValueError:
    """What is wrong when all `count` prompts were set aside."""
    return ValueError(f"all {count} prompts were set aside because their grader failed; mend the environment")


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, STREAM, epoch]).permutation(count)
