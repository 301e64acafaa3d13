"""The update: epochs over the experience, minibatches of it, micro-batches of those, one optimizer step a minibatch."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from data.packing import micro_batches
from stages.algorithms.algorithm import LOSS, Algorithm
from stages.rl.config import RLConfig
from stages.rl.experience import Experience
from stages.rl.samples import Indices
from stages.trainer.device import largest, total
from stages.trainer.learner import Learner

RATIO, RATIO_MAX = "importance_ratio", "importance_ratio_max"


def update(
    learner: Learner, algorithm: Algorithm, experience: Experience, rl: RLConfig, seed: tuple[int, ...]
) -> dict[str, float]:
    """Train on the kept samples, and return the algorithm's metrics, each the mean over the optimizer steps.

    Beside the mean of the importance ratio, where the algorithm has that metric, stands its largest value.

    `seed` decides which sample is in which minibatch, alike for any number of ranks. A minibatch in which no rank has
    anything to learn makes no optimizer step; without any step the metrics are empty. All ranks call it together.
    """
    rows: list[dict[str, float]] = []
    for epoch in range(algorithm.epochs):
        for minibatch in split(experience, algorithm.minibatches, rl, (*seed, epoch)):
            sums = accumulate(learner, algorithm, experience, minibatch, rl)
            if sums is not None:
                rows.append({**sums, "learning_rate": learner.learning_rate, "gradient_norm": learner.step()})
    metrics = {name: sum(row[name] for row in rows) / len(rows) for name in (rows[0] if rows else ())}
    return metrics | {RATIO_MAX: max(row[RATIO_MAX] for row in rows)} if RATIO_MAX in metrics else metrics


def split(experience: Experience, minibatches: int, rl: RLConfig, seed: tuple[int, ...]) -> Iterator[Indices]:
    """The samples of this rank in each minibatch, by one permutation of all samples of the step."""
    count = rl.prompts_per_step * rl.samples_per_prompt
    places = np.random.default_rng(seed).permutation(count)[experience.samples.numbers]
    for index in range(minibatches):
        yield np.flatnonzero(places * minibatches // count == index)


def accumulate(
    learner: Learner, algorithm: Algorithm, experience: Experience, minibatch: Indices, rl: RLConfig
) -> dict[str, float] | None:
    """Add up the gradient of the minibatch over its micro-batches; its metrics, or None when nobody has what to learn.

    Samples that are left out, because their gradient is zero, still count in the loss's means: it is the loss without
    leaving them out (GRPO, Shao et al. 2024, eq. 3, divides by all samples of a prompt). With `resample` they are not
    part of the batch (DAPO, Yu et al. 2025, eq. 11). Metrics are means over what was learned from. Every rank makes
    equally many passes, some of them over nothing: a pass of a sharded policy needs all ranks.
    """
    samples = experience.samples
    kept = minibatch[experience.keep[minibatch]]
    counted = kept if algorithm.resample else minibatch
    counts = total(*(float(n) for part in (counted, kept) for n in (samples.sizes[part].sum(), len(part))))
    num_tokens, num_samples, kept_tokens, kept_samples = map(int, counts)
    if not kept_samples:
        return None
    parts = [kept[part] for part in micro_batches(samples.lengths[kept].tolist(), rl.micro_batch_tokens)]
    parts += [kept[:0]] * (largest(len(parts)) - len(parts))
    ratio = algorithm.update_metrics.get(RATIO)
    ratio_max = torch.zeros((), device=samples.device)
    sums = torch.zeros(len(algorithm.update_metrics), dtype=torch.float64, device=samples.device)
    for part in parts:
        forward = partial(samples.forward, learner.policy, part, temperature=rl.sampling.temperature)
        batch = samples.batch(part, num_tokens, num_samples, forward)
        carried = {n: samples.pick(experience.quantities[n], algorithm.kinds[n], part) for n in algorithm.carried}
        made = algorithm.run_update(batch, carried)
        learner.accumulate(made[LOSS])
        learned = replace(batch, total_tokens=kept_tokens, total_samples=kept_samples)
        for index, source in enumerate(algorithm.update_metrics.values()):
            sums[index] += learned.part_of_mean(made[source].detach(), algorithm.kinds[source])
        if ratio is not None and made[ratio].numel():
            ratio_max = torch.maximum(ratio_max, made[ratio].detach().max())
    metrics = dict(zip(algorithm.update_metrics, total(*sums.tolist()), strict=True))
    return metrics if ratio is None else {**metrics, RATIO_MAX: largest(float(ratio_max))}
