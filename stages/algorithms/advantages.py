"""How much better a sample, or a token, was than expected."""

from typing import Annotated, NamedTuple

from pydantic import Field, PositiveFloat

from stages.algorithms.kinds import Batch, PerGroup, PerSample, PerToken
from stages.algorithms.operator import operator


@operator(whole_batch=True)
def group_mean(batch: Batch, of: PerSample) -> PerGroup:
    """The mean over the samples of one prompt."""
    return batch.sum_samples(of) / batch.group_sizes.clamp(min=1)


@operator(whole_batch=True)
def group_deviation(batch: Batch, of: PerSample) -> PerGroup:
    """The standard deviation over the samples of one prompt (n - 1 in the divisor); 0 for a single sample."""
    centred = of - group_mean(batch, of)[batch.groups]
    return (batch.sum_samples(centred.square()) / (batch.group_sizes - 1).clamp(min=1)).sqrt()


@operator(whole_batch=True)
def subtract_group(batch: Batch, of: PerSample, group: PerGroup) -> PerSample:
    """The quantity minus that of its group.

    The reward minus the group's mean is the advantage of Dr. GRPO (Liu et al. 2025).
    """
    return of - group[batch.groups]


@operator(whole_batch=True)
def divide_by_group(batch: Batch, of: PerSample, group: PerGroup, *, epsilon: PositiveFloat = 1e-4) -> PerSample:
    """The quantity divided by (that of its group + epsilon).

    The centred reward divided by the group's deviation is the advantage of GRPO (Shao et al. 2024, section 4.1.2).
    """
    return of / (group[batch.groups] + epsilon)


@operator(whole_batch=True)
def leave_one_out(batch: Batch, of: PerSample) -> PerSample:
    """x_i minus the mean of the other samples of its group: RLOO (Ahmadian et al. 2024).

    0 for a sample that is alone in its group, since there is nothing to compare it with.
    """
    sizes = batch.group_sizes[batch.groups]
    others = (batch.sum_samples(of)[batch.groups] - of) / (sizes - 1).clamp(min=1)
    return (of - others) * (sizes > 1)


Factor = Annotated[float, Field(ge=0, le=1)]


class Estimate(NamedTuple):
    """Of each token."""

    advantages: PerToken
    returns: PerToken
    """advantages + values: what the critic should have said."""


@operator()
def gae(batch: Batch, reward: PerSample, values: PerToken, *, discount: Factor, trace_decay: Factor) -> Estimate:
    """Generalized advantage estimation (Schulman et al. 2016, eq. 16) for a reward that comes with the last token.

    delta_t = r_t + discount V_(t+1) - V_t, A_t = delta_t + discount trace_decay A_(t+1); V and A are 0 after the end,
    also when the completion was cut: it has earned all it can earn.
    """
    last = 1 - batch.following(values.new_ones(len(values)))
    delta = reward[batch.sample_of_token] * last + discount * batch.following(values) - values
    advantages = batch.sum_to_end(delta, discount * trace_decay)
    return Estimate(advantages, advantages + values)
