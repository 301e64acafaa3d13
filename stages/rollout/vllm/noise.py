"""Where noise puts a token in place of the sampled one: the same places and tokens as in the torch engine."""

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stages.rollout.draws import PUTS, STRIKES, uniforms


class Strike(NamedTuple):
    """Noise at one position of a completion."""

    position: int
    token: int


def strikes(seed: int, limit: int, noise: float, ordinary: npt.NDArray[np.int64]) -> deque[Strike]:
    """All strikes in the first `limit` positions of a request, in order."""
    if noise == 0:
        return deque()
    draws = uniforms(seed, limit)
    places = np.flatnonzero(draws[:, STRIKES] < noise)
    return deque(Strike(int(place), int(ordinary[int(draws[place, PUTS] * len(ordinary))])) for place in places)
