"""The algorithm's experience of a rank's rollouts: computed once, without gradient, before the update."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from data.packing import micro_batches
from data.trajectories import Trajectories
from stages.algorithms.algorithm import Algorithm
from stages.algorithms.kinds import Batch, Kind, PolicyOutputs
from stages.rl.config import RLConfig
from stages.rl.samples import Indices, Samples, token_places
from stages.trainer.device import largest, total
from stages.trainer.policy import Policy

ZERO = 1e-6
"""What counts as no advantage: a mean of equal rewards may be off by a rounding."""


class Experience(NamedTuple):
    """All that the update starts from."""

    samples: Samples
    quantities: dict[str, Tensor]
    """What was given and what the algorithm made of it, by name."""
    keep: npt.NDArray[np.bool_]
    """[N], whether the update learns from the sample."""
    metrics: dict[str, float]


@torch.no_grad()
def make_experience(policy: Policy, algorithm: Algorithm, trajectories: Trajectories, rl: RLConfig) -> Experience:
    """Run the algorithm's experience. All ranks call it together."""
    samples = Samples.of(trajectories, rl.samples_per_prompt, next(policy.parameters()).device)
    num_tokens, num_samples = (int(value) for value in total(float(samples.sizes.sum()), len(samples.sizes)))
    every = np.arange(len(samples.sizes))
    batch = samples.batch(every, num_tokens, num_samples, lambda wanted: _forward_all(policy, samples, wanted, rl))
    quantities = algorithm.run_experience(batch, samples.given)
    skip = algorithm.skip_where_zero
    keep = np.ones(len(every), np.bool_) if skip is None else not_zero(quantities[skip], algorithm.kinds[skip], batch)
    metrics = {"samples_skipped": total(int((~keep).sum()))[0]}
    metrics |= {
        name: _mean(quantities[source], algorithm.kinds[source], batch)
        for name, source in algorithm.experience_metrics.items()
    }
    return Experience(samples, quantities, keep, metrics)


def _forward_all(policy: Policy, samples: Samples, wanted: frozenset[str], rl: RLConfig) -> PolicyOutputs:
    """What the policy says of all samples: micro-batch by micro-batch, equally many on every rank."""
    parts: list[Indices] = [np.array(part) for part in micro_batches(samples.lengths.tolist(), rl.micro_batch_tokens)]
    parts += [np.arange(0)] * (largest(len(parts)) - len(parts))
    outputs = [samples.forward(policy, part, wanted, rl.sampling.temperature) for part in parts]
    # From the order of the micro-batches back to that of the samples.
    places = np.concatenate([np.arange(0), *(token_places(samples.sizes, part) for part in parts)])
    order = torch.from_numpy(np.argsort(places)).to(samples.device)

    def joined(columns: list[Tensor | None]) -> Tensor | None:
        there = [column for column in columns if column is not None]
        return torch.cat(there)[order] if there else None

    logprobs = joined([output.logprobs for output in outputs])
    assert logprobs is not None, "there is at least one sample on one of the ranks"
    return PolicyOutputs(
        logprobs, joined([output.entropy for output in outputs]), joined([output.values for output in outputs])
    )


def not_zero(quantity: Tensor, kind: Kind, batch: Batch) -> npt.NDArray[np.bool_]:
    """[N], whether the quantity of a sample, or of any of its tokens, is not zero."""
    magnitude = batch.sum_tokens(quantity.abs()) if kind is Kind.TOKEN else quantity.abs()
    return (magnitude > ZERO).cpu().numpy()


def _mean(quantity: Tensor, kind: Kind, batch: Batch) -> float:
    """Over all tokens or samples of all ranks; a scalar of the experience is already one number for all."""
    part = float(batch.part_of_mean(quantity, kind))
    return part if kind is Kind.SCALAR else total(part)[0]
