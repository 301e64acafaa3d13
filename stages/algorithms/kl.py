"""Estimates of KL(old || new) of the distribution at each token, from the one token that `old` drew.

All are of Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html), and per token. `new` is the
policy as it is for a term of the loss or a metric, and the reference for a penalty that is a part of the reward.
"""

from stages.algorithms.kinds import PerToken
from stages.algorithms.operator import operator


@operator()
def kl_k1(new: PerToken, old: PerToken) -> PerToken:
    """Log old - log new: unbiased, of either sign. As a term of the loss its gradient has mean 0 and teaches nothing.

    Made for a penalty in the reward, where no gradient flows (REINFORCE++, Hu et al. 2025, arXiv 2501.03262).
    """
    return old - new


@operator()
def kl_k2(new: PerToken, old: PerToken) -> PerToken:
    """(old - new)^2 / 2: never negative, biased, but its gradient is that of the divergence where both are close."""
    return (old - new).square() / 2


@operator()
def kl_k3(new: PerToken, old: PerToken) -> PerToken:
    """With r = exp(new - old), r - 1 - log r: unbiased, and never negative.

    With the policy as `old` and the reference as `new` it is the term of GRPO's loss (Shao et al. 2024, eq. 4); with
    the rollout as `old` and the policy as `new` the policy drift of CPGD (Liu et al. 2025, arXiv 2505.12504), whose
    gradient is (r - 1) times that of the log-probability.
    """
    difference = new - old
    return difference.exp() - 1 - difference


KL = frozenset(estimate.__name__ for estimate in (kl_k1, kl_k2, kl_k3))
"""Names of these operators."""
