"""Where noise puts a token in place of the sampled one: the same places and tokens as in the torch engine."""

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Strike(NamedTuple):
    """Noise at one position of a completion."""

    position: int
    token: int


def strikes(seed: int, limit: int, noise: float, ordinary: npt.NDArray[np.int64]) -> deque[Strike]:
    """All strikes in the first `limit` positions of a request, in order.

    Three uniforms belong to a position: which token, whether noise strikes, which of `ordinary` it puts there
    (see `stages.rollout.torch.sampling`).
    """
    if noise == 0:
        return deque()
    draws = np.random.Generator(np.random.Philox(key=seed)).random((limit, 3))
    places = np.flatnonzero(draws[:, 1] < noise)
    return deque(Strike(int(place), int(ordinary[int(draws[place, 2] * len(ordinary))])) for place in places)
