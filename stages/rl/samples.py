"""The graded samples of a rank, laid out so that some of them can be picked, packed and put before the policy."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from data.packing import pack_masked
from data.trajectories import Trajectories
from stages.algorithms.kinds import Batch, Kind, PolicyOutputs
from stages.trainer.policy import Policy

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """N samples whose grading did not fail, K tokens of the policy in all."""

    sequences: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]]
    """[N], tokens as they were played, and true on those that the policy chose."""
    lengths: Indices
    """[N], tokens in all."""
    sizes: Indices
    """[N], tokens that the policy chose; their sum is K."""
    groups: Indices
    """[N], slot of the prompt in the step."""
    numbers: Indices
    """[N], number of the sample in the step: it has the same one whatever the number of ranks."""
    given: dict[str, Tensor]
    """The quantities that every algorithm may take (`stages.algorithms.kinds.GIVEN`)."""

    @staticmethod
    def of(trajectories: Trajectories, samples_per_prompt: int, device: torch.device) -> "Samples":
        """The graded ones of a rank's trajectories, which hold `samples_per_prompt` sequences of each prompt."""
        graded = np.flatnonzero(trajectories.graded)
        sizes = trajectories.completion_lengths
        groups = trajectories.groups.astype(np.int64)
        numbers = groups * samples_per_prompt + np.arange(len(groups)) % samples_per_prompt
        given = {
            "reward": trajectories.rewards[graded],
            "rollout_logprobs": trajectories.logprobs[trajectories.mask][token_places(sizes, graded)],
            "length": sizes[graded].astype(np.float32),
            "finished": trajectories.finished[graded].astype(np.float32),
            "limit": trajectories.limits[graded].astype(np.float32),
        }
        return Samples(
            sequences=[trajectories.sequence(int(index)) for index in graded],
            lengths=trajectories.lengths[graded],
            sizes=sizes[graded],
            groups=groups[graded],
            numbers=numbers[graded],
            given={name: torch.from_numpy(values).to(device) for name, values in given.items()},
        )

    @property
    def device(self) -> torch.device:
        """Where the quantities are."""
        return self.given["reward"].device

    def batch(
        self, picked: Indices, total_tokens: int, total_samples: int, forward: Callable[[frozenset[str]], PolicyOutputs]
    ) -> Batch:
        """The layout of the picked samples; the counts are those of all that are trained on together."""
        distinct, groups = np.unique(self.groups[picked], return_inverse=True)
        return Batch(
            lengths=torch.from_numpy(self.sizes[picked]).to(self.device),
            groups=torch.from_numpy(groups.astype(np.int64)).to(self.device),
            num_groups=len(distinct),
            total_tokens=total_tokens,
            total_samples=total_samples,
            reduce=_sum_over_ranks,
            forward=forward,
        )

    def pick(self, quantity: Tensor, kind: Kind, picked: Indices) -> Tensor:
        """The entries of the picked samples; a scalar is as it is."""
        if kind is Kind.SCALAR:
            return quantity
        assert kind is not Kind.GROUP, "the picked samples may be a part of a group"
        places = token_places(self.sizes, picked) if kind is Kind.TOKEN else picked
        return quantity[torch.from_numpy(places).to(self.device)]

    def forward(self, policy: Policy, picked: Indices, wanted: frozenset[str], temperature: float) -> PolicyOutputs:
        """What the policy says of the picked samples in one pass; of none, a pass over nothing. All ranks call it."""
        packed = pack_masked([self.sequences[index] for index in picked])
        entropy, values = "entropy" in wanted, "values" in wanted
        return PolicyOutputs(*policy(packed, entropy=entropy, values=values, temperature=temperature))


def token_places(sizes: Indices, picked: Indices) -> Indices:
    """Where the tokens of the picked samples lie when those of all samples, of these sizes, are laid end to end."""
    taken = sizes[picked]
    starts = (np.cumsum(sizes) - sizes)[picked]
    return np.arange(taken.sum()) + np.repeat(starts - (np.cumsum(taken) - taken), taken)


def _sum_over_ranks(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor
