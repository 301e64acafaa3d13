"""Shares and means with bootstrap intervals, pass@k, and paired comparisons. Numpy only.

The prompt is the unit that is resampled: samples of one prompt, and perturbed copies of it, are not independent of each
other, so to resample them one by one would give intervals that are too narrow (a cluster bootstrap).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CHUNK_ELEMENTS = 4_000_000
"""Resampled values held at once, about 64 MB of indices and values."""


@dataclass(frozen=True)
class Bootstrap:
    """Percentile intervals (Efron 1979) from `resamples` seeded resamples with replacement."""

    resamples: int
    confidence: float
    seed: int

    def interval(self, values: Floats) -> tuple[float, float]:
        """Interval of the mean of `values` [prompts], at least one of them.

        The same number of prompts gets the same resamples, so two policies are compared on equal terms. When all values
        are equal the interval has no width: for a share of exactly 0 or 1, 3 / prompts is the usual bound (docs).
        """
        assert values.ndim == 1 and len(values)
        generator = np.random.default_rng((self.seed, len(values)))
        rows = max(1, CHUNK_ELEMENTS // len(values))
        means = np.concatenate(
            [
                values[generator.integers(len(values), size=(min(rows, self.resamples - start), len(values)))].mean(1)
                for start in range(0, self.resamples, rows)
            ]
        )
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(means, (tail, 1 - tail))
        return float(low), float(high)


def prompt_means(ids: NDArray[np.str_], values: Floats, keep: NDArray[np.bool_]) -> tuple[NDArray[np.str_], Floats]:
    """Prompts with at least one kept row, in id order, and the mean of `values` over the kept rows of each."""
    prompts, inverse = np.unique(ids[keep], return_inverse=True)
    counts = np.bincount(inverse, minlength=len(prompts))
    return prompts, np.bincount(inverse, weights=values[keep], minlength=len(prompts)) / counts


def pass_at_k(samples: NDArray[np.int64], correct: NDArray[np.int64], k: int) -> Floats:
    """Chance that one of `k` samples is right, by prompt: of `samples` (each at least k) `correct` are right.

    The unbiased estimator 1 - C(n - c, k) / C(n, k) of Chen et al. 2021 (arXiv:2107.03374, equation 1), as the product
    over the first k draws without replacement of the chance that each is wrong.
    """
    assert k >= 1 and (samples >= k).all() and (correct <= samples).all()
    drawn = np.arange(k)
    wrong = np.clip((samples - correct)[:, None] - drawn, 0, None) / (samples[:, None] - drawn)
    return 1 - wrong.prod(axis=1)


@dataclass(frozen=True)
class Paired:
    """What changed between two policies on the same prompts. `difference` is the second minus the first."""

    difference: float
    low: float
    high: float
    won: float
    """Share of prompts on which the second policy does better."""
    lost: float
    tied: float
    count: int
    """Prompts that were graded for both."""


def compare(
    first: tuple[NDArray[np.str_], Floats], second: tuple[NDArray[np.str_], Floats], bootstrap: Bootstrap
) -> Paired | None:
    """Compare two results of `prompt_means` on the prompts that both have; None when there are none."""
    common, one, two = np.intersect1d(first[0], second[0], assume_unique=True, return_indices=True)
    if not len(common):
        return None
    difference = second[1][two] - first[1][one]
    low, high = bootstrap.interval(difference)
    won, lost = float((difference > 0).mean()), float((difference < 0).mean())
    tied = float((difference == 0).mean())
    return Paired(float(difference.mean()), low, high, won, lost, tied, len(common))
