"""The quantities that flow between operators, and the batch that says how they belong together.

This package works through the methods of tensors and never imports torch, so that a login node without it can check an
algorithm file before any job is submitted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


class Kind(StrEnum):
    """What a quantity has one entry for."""

    TOKEN = "per token"
    """[K], one for each token that the policy chose, sample after sample."""
    SAMPLE = "per sample"
    """[N]"""
    GROUP = "per group"
    """[G], one for each prompt, whose samples are a group."""
    SCALAR = "a scalar"
    """[], in the update a part of a sum over all micro-batches and ranks."""


PerToken: TypeAlias = Annotated["Tensor", Kind.TOKEN]
PerSample: TypeAlias = Annotated["Tensor", Kind.SAMPLE]
PerGroup: TypeAlias = Annotated["Tensor", Kind.GROUP]
Scalar: TypeAlias = Annotated["Tensor", Kind.SCALAR]

GIVEN: dict[str, Kind] = {
    "reward": Kind.SAMPLE,
    "rollout_logprobs": Kind.TOKEN,
    "length": Kind.SAMPLE,
    "finished": Kind.SAMPLE,
    "limit": Kind.SAMPLE,
}
"""What the stage gives to every algorithm: the reward, the log-probability with which the rollout engine drew each
token, the number of tokens of each completion, 1 where it ended by itself (else 0), and the number of tokens that it
might have had."""


class PolicyOutputs(NamedTuple):
    """What a forward pass of the policy gives; None for what was not wanted."""

    logprobs: PerToken
    """Log-probability of each chosen token under the policy as it is now."""
    entropy: PerToken | None
    """Entropy of the distribution that the token was drawn from, in nats."""
    values: PerToken | None
    """The critic's value of the state before each token."""


@dataclass(frozen=True)
class Batch:
    """The samples that an operator works on: in the experience all of a rank, in the update those of a micro-batch.

    It may be empty: a rank without work takes part in what all ranks do together.
    """

    lengths: "Tensor"
    """[N] int64, tokens of each sample."""
    groups: "Tensor"
    """[N] int64, group of each sample, 0 to `num_groups` - 1."""
    num_groups: int
    total_tokens: int
    """Tokens of the whole batch (in the update: of the minibatch) over all ranks and micro-batches."""
    total_samples: int
    reduce: Callable[["Tensor"], "Tensor"]
    """The sum of a tensor over all ranks."""
    forward: Callable[[frozenset[str]], PolicyOutputs]
    """The policy's forward pass for this batch, with the named outputs."""
    reference: Callable[[], "Tensor"] | None = None
    """[K], log-probabilities of the chosen tokens under the weights that the stage began with. Experience only."""
    wanted: frozenset[str] = frozenset()
    """Names of the running node's outputs that others take."""

    @cached_property
    def sample_of_token(self) -> "Tensor":
        """[K] int64, which sample each token is of."""
        return (self.lengths.new_ones(len(self.lengths)).cumsum(0) - 1).repeat_interleave(self.lengths)

    @cached_property
    def place_in_sample(self) -> "Tensor":
        """[K] int64, 0 for the first token of each sample."""
        starts = self.lengths.cumsum(0) - self.lengths
        return self.sample_of_token.new_ones(len(self.sample_of_token)).cumsum(0) - 1 - starts[self.sample_of_token]

    def sum_tokens(self, of: PerToken) -> PerSample:
        """The sum over each sample's tokens."""
        return of.new_zeros(len(self.lengths)).index_add(0, self.sample_of_token, of)

    def sum_samples(self, of: PerSample) -> PerGroup:
        """The sum over each group's samples."""
        return of.new_zeros(self.num_groups).index_add(0, self.groups, of)

    def part_of_mean(self, of: "Tensor", kind: Kind) -> Scalar:
        """What this batch adds to the mean over all that are trained on together; a scalar is such a part already."""
        if kind is Kind.SCALAR:
            return of
        assert kind is not Kind.GROUP, "groups are not counted over ranks"
        return of.sum() / max(1, self.total_tokens if kind is Kind.TOKEN else self.total_samples)

    @cached_property
    def group_sizes(self) -> "Tensor":
        """[G] float, samples of each group."""
        return self.sum_samples(self.groups.new_ones(len(self.groups)).float())
