"""Which token is next.

Every random number belongs to a request and a position, so neither the slot that plays a request, nor its neighbours,
nor the number of ranks can change what is drawn for it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from stages.rollout.draws import PUTS, STRIKES, TOKEN

BLOCK = 128
"""Tokens of the vocabulary that `invert` looks at together."""
BELOW = 1 - 1e-12
"""Keeps what is drawn below the sum of all, so that rounding never finds a token without probability."""


@dataclass(frozen=True)
class Sampler:
    """Chooses tokens from logits."""

    temperature: float
    """0 is greedy."""
    noise: float
    """Chance that the chosen token is replaced by one of `ordinary`, drawn uniformly."""
    ordinary: Tensor
    """Token ids that noise may put in place."""

    @property
    def needs_draws(self) -> bool:
        """Whether any random number is used at all."""
        return self.temperature > 0 or self.noise > 0

    def choose(self, logits: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [rows] and their log-probabilities [rows] from `logits` [rows, vocabulary] and `draws` [rows, 3].

        The log-probability is that of the token that is returned (noise or not), under the tempered distribution;
        under the untempered one when greedy.
        """
        logits = logits.float()
        logprobs = torch.log_softmax(logits if self.temperature in (0, 1) else logits / self.temperature, -1)
        tokens = logits.argmax(-1) if self.temperature == 0 else invert(logprobs, draws[:, TOKEN])
        if self.noise > 0:
            other = self.ordinary[(draws[:, PUTS] * len(self.ordinary)).long()]
            tokens = torch.where(draws[:, STRIKES] < self.noise, other, tokens)
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def invert(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulated probability passes `uniform` [rows]; `logprobs` is [rows, vocabulary].

    First the block of tokens, then the token in it, since only so few numbers are cumulated. In float64: in float32
    the tail of a large vocabulary would be rounded away. Where a logit is NaN or infinite the token means nothing, and
    its log-probability is NaN.
    """
    vocabulary = logprobs.shape[-1]
    blocks = pad(logprobs.exp(), (0, -vocabulary % BLOCK)).unflatten(-1, (-1, BLOCK))
    cumulated = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = uniform[:, None] * cumulated[:, -1:] * BELOW
    block = torch.searchsorted(cumulated, target, right=True).clamp(max=cumulated.shape[-1] - 1)
    target = target - cumulated.gather(1, (block - 1).clamp(min=0)) * (block > 0)
    inside = blocks.take_along_dim(block[..., None], 1)[:, 0].double().cumsum(-1)
    token = torch.searchsorted(inside, torch.minimum(target, inside[:, -1:] * BELOW), right=True)
    return (block * BLOCK + token)[:, 0].clamp(max=vocabulary - 1)
