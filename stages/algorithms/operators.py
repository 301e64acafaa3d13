"""Operators that neither estimate an advantage nor make a loss."""

from typing import TYPE_CHECKING

from pydantic import PositiveFloat

from stages.algorithms.kinds import Batch, PerGroup, PerSample, PerToken, PolicyOutputs, Scalar
from stages.algorithms.operator import operator

if TYPE_CHECKING:
    from torch import Tensor


@operator()
def policy_forward(batch: Batch) -> PolicyOutputs:
    """Log-probabilities (and entropy and values where a node takes them) of the policy as it is now.

    In the update with gradient, in the experience without. Once in each section: one forward pass gives it all.
    """
    return batch.forward(batch.wanted)


@operator(whole_batch=True)
def reference_forward(batch: Batch) -> PerToken:
    """Log-probabilities of the chosen tokens under the reference: the weights that the stage began with, frozen."""
    assert batch.reference is not None, "only the experience has a reference"
    return batch.reference()


@operator()
def importance_ratio(new: PerToken, old: PerToken) -> PerToken:
    """exp(new - old): how much likelier a token has become since it was drawn (Schulman et al. 2017, eq. 6)."""
    return (new - old).exp()


@operator()
def sequence_ratio(batch: Batch, new: PerToken, old: PerToken) -> PerSample:
    """exp(mean over the sample's tokens of new - old): GSPO (Zheng et al. 2025, arXiv 2507.18071, eq. 7). Per sample.

    The geometric mean of the tokens' ratios; its gradient flows through all of them.
    """
    return (batch.sum_tokens(new - old) / batch.lengths.clamp(min=1)).exp()


@operator()
def truncated_ratio(new: PerToken, old: PerToken, *, cap: PositiveFloat = 2.0) -> PerToken:
    """min(exp(new - old), cap), held constant: truncated importance sampling (Ionides 2008; Yao et al. 2025).

    A weight for the loss of each token that was drawn by another engine, or by older weights, than those it is trained
    from: `new` is the policy at the start of the update, `old` the policy that drew. The cap bounds the variance.
    """
    return (new - old).exp().clamp(max=cap).detach()


@operator()
def over_tokens(batch: Batch, of: PerSample) -> PerToken:
    """A quantity of each sample, repeated for each of its tokens."""
    return of[batch.sample_of_token]


@operator()
def over_samples(batch: Batch, of: PerGroup) -> PerSample:
    """A quantity of each group, repeated for each of its samples."""
    return of[batch.groups]


@operator()
def multiply(of: PerToken, factor: PerToken) -> PerToken:
    """The product, token by token."""
    return of * factor


@operator()
def add(base: Scalar, other: Scalar, *, weight: float) -> Scalar:
    """A weighted sum: base + weight x other."""
    return base + weight * other


@operator(whole_batch=True)
def whiten(batch: Batch, of: PerToken, *, epsilon: PositiveFloat = 1e-6) -> PerToken:
    """(x - mean) / (standard deviation + epsilon), with the moments of all tokens of all ranks."""
    return _whitened(batch, of, batch.total_tokens, epsilon)


@operator(whole_batch=True)
def whiten_samples(batch: Batch, of: PerSample, *, epsilon: PositiveFloat = 1e-6) -> PerSample:
    """(x - mean) / (standard deviation + epsilon), with the moments of all samples of all ranks."""
    return _whitened(batch, of, batch.total_samples, epsilon)


def _whitened(batch: Batch, of: "Tensor", count: int, epsilon: float) -> "Tensor":
    mean = batch.reduce(of.sum()) / max(1, count)
    variance = batch.reduce((of - mean).square().sum()) / max(1, count)
    return (of - mean) / (variance.sqrt() + epsilon)


@operator(whole_batch=True)
def explained_variance(batch: Batch, values: PerToken, returns: PerToken) -> Scalar:
    """1 - Var(returns - values) / Var(returns) over all tokens of all ranks: 1 is a perfect critic, 0 a constant."""

    def variance(of: PerToken) -> Scalar:
        mean = batch.reduce(of.sum()) / max(1, batch.total_tokens)
        return batch.reduce((of - mean).square().sum())

    return 1 - variance(returns - values) / variance(returns).clamp(min=1e-8)
