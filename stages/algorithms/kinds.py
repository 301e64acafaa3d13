"""The quantities that flow between operators, and the batch that says how they belong together.

This package works through the methods of tensors and never imports torch, so that a login node without it can check an
algorithm file before any job is submitted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
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

    layout: dict[str, "Tensor"] = field(default_factory=dict[str, "Tensor"])
    """What follows from lengths and groups, computed once for all views of this batch."""

    @property
    def sample_of_token(self) -> "Tensor":
        """[K] int64, which sample each token is of."""
        if "sample_of_token" not in self.layout:
            numbers = self.lengths.new_ones(len(self.lengths)).cumsum(0) - 1
            self.layout["sample_of_token"] = numbers.repeat_interleave(self.lengths)
        return self.layout["sample_of_token"]

    @property
    def group_sizes(self) -> "Tensor":
        """[G] float, samples of each group."""
        if "group_sizes" not in self.layout:
            self.layout["group_sizes"] = self.sum_samples(self.groups.new_ones(len(self.groups)).float())
        return self.layout["group_sizes"]

    def following(self, of: PerToken, by: int = 1) -> PerToken:
        """What the token `by` places later in the same sample has; 0 where the sample has ended."""
        later, sample = of.new_zeros(len(of)), self.sample_of_token
        later[:-by] = of[by:].where(sample[by:] == sample[:-by], of.new_zeros(()))
        return later

    def sum_to_end(self, of: PerToken, decay: float = 1.0) -> PerToken:
        """x_t + decay x_(t+1) + decay^2 x_(t+2) + ... to the end of the sample.

        By doubling: when a token has the sum over n tokens, that of the token n later makes it one over 2n. So it takes
        as many steps as the longest sample's length has binary digits, and errors of rounding grow no faster.
        """
        count, longest = 1, int(self.lengths.max()) if len(self.lengths) else 0
        while count < longest:
            of = of + decay**count * self.following(of, count)
            count *= 2
        return of

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
