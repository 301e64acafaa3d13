"""Quantities of each sample that are taken off its reward, or added to it: all per sample."""

from typing import Annotated

from pydantic import Field

from stages.algorithms.kinds import Batch, PerSample, PerToken
from stages.algorithms.operator import operator

Share = Annotated[float, Field(gt=0, le=1)]


@operator()
def overlong_penalty(length: PerSample, limit: PerSample, *, buffer_share: Share = 0.2) -> PerSample:
    """Soft overlong punishment of DAPO (Yu et al. 2025, arXiv 2503.14476, eq. 13), from 0 down to -1.

    With a buffer of buffer_share x limit tokens: 0 up to limit - buffer, then falling linearly, -1 at the limit. The
    paper's buffer is 4096 of 20480 tokens, a share of 0.2.
    """
    buffer = (buffer_share * limit).clamp(min=1e-6)  # without room for a token the whole penalty is due
    return ((limit - buffer - length) / buffer).clamp(-1, 0)


@operator()
def length_penalty(length: PerSample, limit: PerSample) -> PerSample:
    """-length / limit: each token costs the same, an answer as long as it may be costs 1."""
    return -length / limit.clamp(min=1)


@operator()
def shape_reward(reward: PerSample, penalty: PerSample, *, weight: float = 1.0) -> PerSample:
    """A weighted sum: reward + weight x penalty."""
    return reward + weight * penalty


@operator()
def reward_to_go(batch: Batch, reward: PerSample, kl: PerToken, *, weight: float) -> PerToken:
    """Of each token: reward - weight x the sum of `kl` over this token and those after it in the sample.

    The return of REINFORCE++ (Hu et al. 2025, arXiv 2501.03262): the reward comes with the last token, the penalty with
    each, and nothing is discounted.
    """
    return reward[batch.sample_of_token] - weight * batch.sum_to_end(kl)
