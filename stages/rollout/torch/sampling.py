"""Which token is next.

Every random number belongs to a request and a position, so neither the slot that plays a request, nor its neighbours,
nor the number of ranks can change what is drawn for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

NUM_DRAWS = 3
"""Uniforms for each position: which token, whether noise strikes, which token noise puts there."""


def draw_uniforms(seeds: Sequence[int], num_positions: int) -> Tensor:
    """Uniforms in [0, 1), [requests, num_positions, NUM_DRAWS] float64, from each request's own seed.

    Position by position, so the draws of a position depend neither on `num_positions` nor on whether there is noise.
    """
    shape = (num_positions, NUM_DRAWS)
    return torch.from_numpy(np.stack([np.random.Generator(np.random.Philox(key=seed)).random(shape) for seed in seeds]))


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
        logprobs = torch.log_softmax(logits / self.temperature if self.temperature > 0 else logits, -1)
        tokens = logits.argmax(-1) if self.temperature == 0 else invert(logprobs, draws[:, 0])
        if self.noise > 0:
            other = self.ordinary[(draws[:, 2] * len(self.ordinary)).long()]
            tokens = torch.where(draws[:, 1] < self.noise, other, tokens)
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def invert(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulated probability passes `uniform` [rows]; `logprobs` is [rows, vocabulary].

    In float64: in float32 the tail of a large vocabulary would be rounded away.
    """
    cumulated = logprobs.double().exp().cumsum(-1)
    tokens = torch.searchsorted(cumulated, uniform[:, None] * cumulated[:, -1:], right=True)[:, 0]
    return tokens.clamp(max=logprobs.shape[-1] - 1)
