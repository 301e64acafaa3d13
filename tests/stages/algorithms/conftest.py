"""Batches to work out by hand."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from stages.algorithms.kinds import Batch, PolicyOutputs

MakeBatch = Callable[..., Batch]


@pytest.fixture
def alone() -> MakeBatch:
    """`alone(lengths, groups, outputs, reference)`: a batch that is the whole one, on one rank."""

    def make(
        lengths: Sequence[int],
        groups: Sequence[int] | None = None,
        outputs: PolicyOutputs | None = None,
        reference: Tensor | None = None,
    ) -> Batch:
        groups = [0] * len(lengths) if groups is None else groups

        def forward(_: frozenset[str]) -> PolicyOutputs:
            assert outputs is not None
            return outputs

        def refer() -> Tensor:
            assert reference is not None
            return reference

        return Batch(
            lengths=torch.tensor(lengths, dtype=torch.int64),
            groups=torch.tensor(groups, dtype=torch.int64),
            num_groups=max(groups, default=-1) + 1,
            total_tokens=sum(lengths),
            total_samples=len(lengths),
            reduce=lambda tensor: tensor,
            forward=forward,
            reference=refer,
        )

    return make
