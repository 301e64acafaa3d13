"""How far a rollout engine and the policy may part on the log-probability of the same token."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Limit(NamedTuple):
    """By how much an engine and the policy may differ."""

    largest: float
    """Nats, the log-probability of one token."""
    mean: float
    """Nats, of all further tokens on average: rounding may take one far off, but not all."""
    tolerance: float
    """Of a module's output, as a share of its largest entry."""

    def exceeded(self, apart: npt.NDArray[np.float64]) -> bool:
        """Whether differences [K] in nats are too much: for one of them, or for all of them together."""
        total = self.largest + self.mean * (len(apart) - 1)
        return bool(apart.max(initial=0) > self.largest or (len(apart) > 0 and apart.sum() > total))


FP32 = Limit(1e-4, 1e-4, 1e-5)
"""Sums in another order differ by 1e-6 to 1e-5."""
HALF = Limit(1.0, 0.1, 0.05)
"""In bfloat16 a logit of 16 is known to 0.06. SmolLM2-135M on a CPU, trainer and engine both in bfloat16, parts by 0.04
on average and by 0.3 at most in 192 tokens. Broken: one norm whose first 64 weights are doubled 0.17 and 1.3, rope with
frequencies of 0.9 0.18 and 2.1, a temperature of 0.9 0.15 and 1.4."""


class ParityError(RuntimeError):
    """The engine and the policy give the same token different log-probabilities."""


def differences(engine: npt.NDArray[np.float32], policy: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """[K] nats between the log-probabilities of the same K tokens; infinite where one is not a number."""
    assert engine.shape == policy.shape, "log-probabilities of the same tokens"
    return np.nan_to_num(np.abs(engine.astype(np.float64) - policy), nan=np.inf)


def places_in_words(parted: npt.NDArray[np.bool_]) -> str:
    """Which tokens of one completion part, [tokens] in the order in which they were made."""
    places = np.flatnonzero(parted)
    if not len(places):
        return "none parts"
    first, last = int(places[0]), int(places[-1])
    share = f"{len(places)} of {len(parted)} part"
    if len(places) == len(parted):
        return f"{share}: all of them, from the first on"
    if len(places) == len(parted) - first:
        return f"{share}: all from number {first + 1} on, none before"
    if len(places) == last + 1:
        return f"{share}: the first {last + 1}, none after"
    return f"{share}, scattered from number {first + 1} to {last + 1}"
