"""Operators that neither estimate an advantage nor make a loss."""

from stages.algorithms.kinds import Batch, PerSample, PerToken, PolicyOutputs, Scalar
from stages.algorithms.operator import operator


@operator()
def policy_forward(batch: Batch) -> PolicyOutputs:
    """Log-probabilities (and entropy and values where a node takes them) of the policy as it is now.

    In the update with gradient, in the experience without. Once in each section: one forward pass gives it all.
    """
    return batch.forward(batch.wanted)


@operator()
def importance_ratio(new: PerToken, old: PerToken) -> PerToken:
    """exp(new - old): how much likelier a token has become since it was drawn (Schulman et al. 2017, eq. 6)."""
    return (new - old).exp()


@operator()
def kl_k3(new: PerToken, old: PerToken) -> PerToken:
    """KL(old || new) of the distribution at each token, estimated from the token that `old` drew.

    r - 1 - log r with r = exp(new - old): unbiased, never negative (Schulman 2020, "Approximating KL divergence", k3).
    """
    difference = new - old
    return difference.exp() - 1 - difference


@operator()
def over_tokens(batch: Batch, of: PerSample) -> PerToken:
    """A quantity of each sample, repeated for each of its tokens."""
    return of[batch.sample_of_token]


@operator()
def add(base: Scalar, other: Scalar, *, weight: float) -> Scalar:
    """A weighted sum: base + weight x other."""
    return base + weight * other


@operator(whole_batch=True)
def whiten(batch: Batch, of: PerToken, *, epsilon: float = 1e-6) -> PerToken:
    """(x - mean) / (standard deviation + epsilon), with the moments of all tokens of all ranks."""
    mean = batch.reduce(of.sum()) / max(1, batch.total_tokens)
    variance = batch.reduce((of - mean).square().sum()) / max(1, batch.total_tokens)
    return (of - mean) / (variance.sqrt() + epsilon)


@operator(whole_batch=True)
def explained_variance(batch: Batch, values: PerToken, returns: PerToken) -> Scalar:
    """1 - Var(returns - values) / Var(returns) over all tokens of all ranks: 1 is a perfect critic, 0 a constant."""

    def variance(of: PerToken) -> Scalar:
        mean = batch.reduce(of.sum()) / max(1, batch.total_tokens)
        return batch.reduce((of - mean).square().sum())

    return 1 - variance(returns - values) / variance(returns).clamp(min=1e-8)
