"""From advantages to a scalar to be minimised.

Every mean is a sum here divided by a count over all ranks and micro-batches of the minibatch. So the parts add up, and
the loss does not depend on how the minibatch was split.
"""

import math
from typing import Annotated, NamedTuple

from pydantic import Field, NonNegativeFloat, PositiveFloat

from stages.algorithms.kinds import Batch, PerToken, Scalar
from stages.algorithms.operator import operator

Below = Annotated[float, Field(ge=0, le=1)]
"""How far below 1 a ratio may be; 1 is no bound."""
BelowOne = Annotated[float, Field(ge=0, lt=1)]
"""The same where its logarithm is taken."""
AboveOne = Annotated[float, Field(gt=1)]


class Surrogate(NamedTuple):
    """Of each token."""

    loss: PerToken
    clipped: PerToken
    """1 where the clip took effect, else 0."""


@operator()
def clipped_surrogate(
    ratio: PerToken, advantage: PerToken, *, low: Below = 0.2, high: NonNegativeFloat = 0.2
) -> Surrogate:
    """-min(r A, clip(r, 1 - low, 1 + high) A): PPO (Schulman et al. 2017, eq. 7).

    `high` above `low` is the clip-higher of DAPO (Yu et al. 2025, section 3.1): it lets unlikely tokens grow.
    """
    free = ratio * advantage
    bounded = ratio.clamp(1 - low, 1 + high) * advantage
    return Surrogate(-free.minimum(bounded), (bounded < free).to(ratio.dtype))


@operator()
def dual_clipped_surrogate(
    ratio: PerToken, advantage: PerToken, *, low: Below = 0.2, high: NonNegativeFloat = 0.2, most: AboveOne = 3.0
) -> Surrogate:
    """PPO's, but at most -most A where A < 0, with `most` above 1: dual clip (Ye et al. 2020, arXiv 1912.09729).

    PPO's clip leaves a bad token whose ratio has grown without bound; such a token has no gradient here. Per token.
    """
    inner = clipped_surrogate(ratio, advantage, low=low, high=high)
    bound = -most * advantage
    hit = (advantage < 0) & (inner.loss > bound)
    return Surrogate(inner.loss.where(~hit, bound), inner.clipped.maximum(hit.to(ratio.dtype)))


@operator()
def clipped_weight(
    logprobs: PerToken, ratio: PerToken, advantage: PerToken, *, low: Below = 1.0, high: NonNegativeFloat = 0.28
) -> Surrogate:
    """-sg(clip(r, 1 - low, 1 + high)) A log p: CISPO (MiniMax-M1, Chen et al. 2025, arXiv 2506.13585, eq. 4 and 5).

    sg: held constant. The weight is clipped and not the update, so every token keeps a gradient. low = 1 is no lower
    bound, as in the paper's experiments. Per token.
    """
    weight = ratio.detach().clamp(1 - low, 1 + high)
    return Surrogate(-weight * advantage * logprobs, (weight != ratio.detach()).to(ratio.dtype))


@operator()
def clipped_log_ratio(
    new: PerToken, old: PerToken, advantage: PerToken, *, low: BelowOne = 0.2, high: NonNegativeFloat = 0.2
) -> Surrogate:
    """-min(l A, clip(l, log(1 - low), log(1 + high)) A) with l = new - old: CPGD (Liu et al. 2025, arXiv 2505.12504).

    Policy gradient with PPO's trust region: where it is not clipped, the gradient is -A, whatever the ratio. Per token.
    """
    change = new - old
    free = change * advantage
    bounded = change.clamp(math.log(1 - low), math.log(1 + high)) * advantage
    return Surrogate(-free.minimum(bounded), (bounded < free).to(change.dtype))


@operator()
def policy_gradient(logprobs: PerToken, advantage: PerToken) -> PerToken:
    """-A log p: REINFORCE (Williams 1992), for samples of the policy as it is."""
    return -advantage * logprobs


@operator()
def squared_error(values: PerToken, returns: PerToken) -> PerToken:
    """(V - return)^2: what the critic minimises (Schulman et al. 2017, eq. 9)."""
    return (values - returns).square()


@operator()
def clipped_squared_error(
    values: PerToken, returns: PerToken, old: PerToken, *, within: PositiveFloat = 0.2
) -> PerToken:
    """max((V - return)^2, (old + clip(V - old, -within, within) - return)^2): value clipping of PPO2.

    From OpenAI's baselines (Dhariwal et al. 2017; examined by Engstrom et al. 2020, arXiv 2005.12729). `old` is
    the critic's value before the update. No gradient where V went further than `within` towards the return. Per token.
    """
    held = old + (values - old).clamp(-within, within)
    return (values - returns).square().maximum((held - returns).square())


@operator()
def token_mean(batch: Batch, of: PerToken) -> Scalar:
    """The mean over all tokens, so long completions weigh more (DAPO, Yu et al. 2025, section 3.3)."""
    return of.sum() / max(1, batch.total_tokens)


@operator()
def sample_mean(batch: Batch, of: PerToken) -> Scalar:
    """The mean over the samples of the mean over each one's tokens (GRPO, Shao et al. 2024, eq. 3)."""
    return (batch.sum_tokens(of) / batch.lengths.clamp(min=1)).sum() / max(1, batch.total_samples)


@operator()
def constant_mean(batch: Batch, of: PerToken, *, tokens: PositiveFloat) -> Scalar:
    """The sum over the tokens, divided by samples x a constant: no bias by length (Dr. GRPO, Liu et al. 2025).

    `tokens` is a plain number, for example the usual length of a completion; 1 sums over a completion's tokens.
    """
    return of.sum() / (max(1, batch.total_samples) * tokens)
