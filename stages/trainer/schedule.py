"""The learning rate as a function of the step, so that there is no scheduler whose state could be lost."""

import math

from stages.trainer.config import OptimizerConfig


def schedule(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Share of the learning rate at `step` (the first is 0): linear warm-up, then constant or half a cosine.

    The cosine (Loshchilov and Hutter 2017) is at `final_share` in the last step.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.decay == "constant":
        return 1.0
    done = min(1.0, (step + 1 - config.warmup_steps) / max(1, total_steps - config.warmup_steps))
    return config.final_share + (1 - config.final_share) * 0.5 * (1 + math.cos(math.pi * done))
