"""The random numbers of a request: the same in every engine."""

import numpy as np
import numpy.typing as npt

TOKEN, STRIKES, PUTS = range(3)
"""What the uniforms of a position decide: which token, whether noise strikes, which token noise puts there."""


def uniforms(seed: int, num_positions: int) -> npt.NDArray[np.float64]:
    """Uniforms in [0, 1), [num_positions, 3], from a request's own seed.

    Position by position, so the draws of a position depend neither on `num_positions` nor on whether there is noise.
    """
    return np.random.Generator(np.random.Philox(key=seed)).random((num_positions, 3))
