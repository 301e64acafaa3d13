"""Which rows a step trains on: a function of the seed and of how many samples came before, over all ranks."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt


def batch_rows(seed: int, num_rows: int, cursor: int, count: int) -> npt.NDArray[np.int64]:
    """Rows of the `count` samples after the first `cursor` ones.

    The samples are one permutation of all rows after another, so every row comes once an epoch. The cursor counts
    samples over all ranks: a run that goes on with other ranks goes on at the same sample.
    """
    epochs = range(cursor // num_rows, (cursor + count - 1) // num_rows + 1)
    order = np.concatenate([_permutation(seed, epoch, num_rows) for epoch in epochs])
    start = cursor % num_rows
    return order[start : start + count]


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_rows: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(num_rows)
