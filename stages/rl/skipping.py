"""Which samples the update leaves out, and the proof that it may."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stages.algorithms.algorithm import LOSS, Algorithm
from stages.algorithms.kinds import Batch, Kind, PolicyOutputs
from stages.rl.samples import Indices, Samples
from stages.trainer.device import total

ZERO = 1e-6
"""What counts as no advantage: a mean of equal rewards may be off by a rounding."""
NUM_CHECKED = 8
"""Left-out samples of a step whose gradient is looked at: a term of the loss is there for all of them or for none."""


def not_zero(quantity: Tensor, kind: Kind, batch: Batch) -> npt.NDArray[np.bool_]:
    """[N], whether the quantity of a sample, or of any of its tokens, is not zero."""
    return (_magnitude(quantity, kind, batch) > ZERO).cpu().numpy()


def check_skipped(algorithm: Algorithm, samples: Samples, quantities: dict[str, Tensor], batch: Batch) -> None:
    """ValueError when a sample that is left out would have had a gradient, as by a KL term or an entropy bonus.

    Needs no pass of the policy: the update's nodes are given log-probabilities that are a little off those that were
    played. With `resample` to be left out is the algorithm's intention (DAPO), and not a way to save time. All ranks
    call it together: samples of that kind may be on one of them alone.
    """
    skip = algorithm.skip_where_zero
    if skip is None or algorithm.resample:
        return
    zero = _magnitude(quantities[skip], algorithm.kinds[skip], batch) == 0
    picked = np.flatnonzero(zero.cpu().numpy())[:NUM_CHECKED]
    taught = _gradient_by(algorithm, samples, quantities, picked) if len(picked) else []
    ranks = total(*(float(name in taught) for name in PolicyOutputs._fields))
    names = [name for name, count in zip(PolicyOutputs._fields, ranks, strict=True) if count]
    if names:
        raise ValueError(
            f"the algorithm {algorithm.name}: skip_where_zero: where {skip} is zero, the loss still has a gradient by "
            f"the policy's {' and '.join(names)}, so what is left out would have taught something. Take "
            "skip_where_zero out of the file, or let every term of the loss be weighted by what is zero there"
        )


def _gradient_by(algorithm: Algorithm, samples: Samples, quantities: dict[str, Tensor], picked: Indices) -> list[str]:
    """Names of the policy's outputs by which the loss of the picked samples has a gradient."""
    carried = {name: samples.pick(quantities[name], algorithm.kinds[name], picked) for name in algorithm.carried}
    played = samples.pick(samples.given["rollout_logprobs"], Kind.TOKEN, picked)
    with torch.enable_grad():
        leaves = [(played - shift).requires_grad_() for shift in (0.05, 1.0, 0.5)]
        part = samples.batch(picked, len(played), len(picked), lambda _: PolicyOutputs(*leaves))
        part = replace(part, reduce=torch.clone)
        loss = algorithm.run_update(part, carried)[LOSS]
        loss.backward()
    named = zip(PolicyOutputs._fields, leaves, strict=True)
    return [name for name, leaf in named if leaf.grad is not None and leaf.grad.count_nonzero()]


def _magnitude(quantity: Tensor, kind: Kind, batch: Batch) -> Tensor:
    """[N], of a sample's own entry or summed over its tokens'."""
    return batch.sum_tokens(quantity.abs()) if kind is Kind.TOKEN else quantity.abs()
