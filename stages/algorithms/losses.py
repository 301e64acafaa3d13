"""From advantages to a scalar to be minimised.

Every mean is a sum here divided by a count over all ranks and micro-batches of the minibatch. So the parts add up, and
the loss does not depend on how the minibatch was split.
"""

from typing import NamedTuple

from stages.algorithms.kinds import Batch, PerToken, Scalar
from stages.algorithms.operator import operator


class Surrogate(NamedTuple):
    """Of each token."""

    loss: PerToken
    clipped: PerToken
    """1 where the clip took effect, so that the token has no gradient; else 0."""


@operator()
def clipped_surrogate(ratio: PerToken, advantage: PerToken, *, low: float = 0.2, high: float = 0.2) -> Surrogate:
    """-min(r A, clip(r, 1 - low, 1 + high) A): PPO (Schulman et al. 2017, eq. 7).

    `high` above `low` is the clip-higher of DAPO (Yu et al. 2025, section 3.1): it lets unlikely tokens grow.
    """
    free = ratio * advantage
    bounded = ratio.clamp(1 - low, 1 + high) * advantage
    return Surrogate(-free.minimum(bounded), (bounded < free).to(ratio.dtype))


@operator()
def policy_gradient(logprobs: PerToken, advantage: PerToken) -> PerToken:
    """-A log p: REINFORCE (Williams 1992), for samples of the policy as it is."""
    return -advantage * logprobs


@operator()
def squared_error(values: PerToken, returns: PerToken) -> PerToken:
    """(V - return)^2: what the critic minimises (Schulman et al. 2017, eq. 9)."""
    return (values - returns).square()


@operator()
def token_mean(batch: Batch, of: PerToken) -> Scalar:
    """The mean over all tokens, so long completions weigh more (DAPO, Yu et al. 2025, section 3.3)."""
    return of.sum() / max(1, batch.total_tokens)


@operator()
def sample_mean(batch: Batch, of: PerToken) -> Scalar:
    """The mean over the samples of the mean over each one's tokens (GRPO, Shao et al. 2024, eq. 3)."""
    return (batch.sum_tokens(of) / batch.lengths.clamp(min=1)).sum() / max(1, batch.total_samples)


@operator()
def constant_mean(batch: Batch, of: PerToken, *, tokens: float) -> Scalar:
    """The sum over the tokens, divided by samples x a constant: no bias by length (Dr. GRPO, Liu et al. 2025).

    `tokens` is a plain number, for example the usual length of a completion; 1 sums over a completion's tokens.
    """
    return of.sum() / (max(1, batch.total_samples) * tokens)
