"""The algorithm's experience of a rank's rollouts: computed once, without gradient, before the update."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from data.trajectories import Trajectories
from stages.algorithms.algorithm import Algorithm
from stages.algorithms.kinds import Batch, Kind
from stages.rl.config import RLConfig
from stages.rl.forward import Forward
from stages.rl.samples import Samples
from stages.rl.skipping import check_skipped, not_zero
from stages.trainer.device import total
from stages.trainer.policy import Policy


class Experience(NamedTuple):
    """All that the update starts from."""

    samples: Samples
    quantities: dict[str, Tensor]
    """What was given and what the algorithm made of it, by name."""
    keep: npt.NDArray[np.bool_]
    """[N], whether the update learns from the sample."""
    metrics: dict[str, float]


@torch.no_grad()
def make_experience(
    policy: Policy, algorithm: Algorithm, trajectories: Trajectories, rl: RLConfig, reference: Policy | None = None
) -> Experience:
    """Run the algorithm's experience. All ranks call it together.

    `reference` is what `load_reference` gave where the algorithm needs it, or the policy itself as long as no update
    has moved it.
    """
    samples = Samples.of(trajectories, rl.samples_per_prompt, next(policy.parameters()).device)
    num_tokens, num_samples = (int(value) for value in total(float(samples.sizes.sum()), len(samples.sizes)))
    every = np.arange(len(samples.sizes))
    forward = Forward(policy, reference, algorithm, samples, rl)
    batch = samples.batch(every, num_tokens, num_samples, forward.policy)
    batch = replace(batch, reference=forward.reference)
    quantities = algorithm.run_experience(batch, samples.given)
    skip = algorithm.skip_where_zero
    keep = np.ones(len(every), np.bool_) if skip is None else not_zero(quantities[skip], algorithm.kinds[skip], batch)
    check_skipped(algorithm, samples, quantities, batch)
    skipped, trained = total(int((~keep).sum()), int(samples.sizes[keep].sum()))
    metrics = {"samples_skipped": skipped, "tokens_trained": trained}
    metrics |= {
        name: _mean(quantities[source], algorithm.kinds[source], batch)
        for name, source in algorithm.experience_metrics.items()
    }
    return Experience(samples, quantities, keep, metrics)


def _mean(quantity: Tensor, kind: Kind, batch: Batch) -> float:
    """Over all tokens or samples of all ranks; a scalar of the experience is already one number for all."""
    part = float(batch.part_of_mean(quantity, kind))
    return part if kind is Kind.SCALAR else total(part)[0]
