"""What the rollouts of a step were like, over all ranks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data.trajectories import Trajectories
from stages.algorithms.algorithm import Algorithm
from stages.trainer.device import total

MAX_FAILED_SHARE = 0.5
"""Of a step's samples; with more of them ungraded the grader is broken, not a prompt."""
OWN_METRICS = frozenset(
    {
        *("reward", "success", "completion_length", "finished", "grader_failures", "prompts_set_aside"),
        *("samples_skipped", "parity", "learning_rate", "gradient_norm"),
        *("tokens", "tokens_per_second", "seconds_rollout", "seconds_update"),
    }
)
"""Metrics of the stage, whatever the algorithm."""


class Summary(NamedTuple):
    """Of one step, the same on every rank."""

    metrics: dict[str, float]
    tokens: int
    """Tokens generated."""
    failed: list[str]
    """Ids of the prompts of which a sample could not be graded."""


def summarise(trajectories: Trajectories, ids: Sequence[str]) -> Summary:
    """Sum up a step whose prompts had these `ids`. All ranks call it together.

    Raises RuntimeError when the grader failed on more than MAX_FAILED_SHARE of the samples.
    """
    graded = trajectories.graded
    failed = np.bincount(trajectories.groups[~graded], minlength=len(ids))
    rewards = trajectories.rewards[graded]
    samples, count, tokens, reward, success, finished, *failed_by_prompt = total(
        len(trajectories),
        int(graded.sum()),
        int(trajectories.completion_lengths.sum()),
        float(rewards.sum()),
        int((rewards >= 1).sum()),
        int(trajectories.finished.sum()),
        *failed.tolist(),
    )
    failed_ids = [name for name, failures in zip(ids, failed_by_prompt, strict=True) if failures]
    if samples - count > MAX_FAILED_SHARE * samples:
        raise RuntimeError(
            f"the grader failed on {samples - count:.0f} of the {samples:.0f} samples of a step, for example of row "
            f"{failed_ids[0]}; the log says why"
        )
    metrics = {
        "reward": reward / count,
        "success": success / count,
        "completion_length": tokens / samples,
        "finished": finished / samples,
        "grader_failures": samples - count,
        "tokens": tokens,
    }
    return Summary(metrics, int(tokens), failed_ids)


def check_metric_names(algorithm: Algorithm) -> None:
    """ValueError when an algorithm calls a metric by a name of the stage's own."""
    taken = sorted(OWN_METRICS & (algorithm.experience_metrics.keys() | algorithm.update_metrics.keys()))
    if taken:
        raise ValueError(f"{algorithm.name}: metrics: the rl stage has its own {', '.join(taken)}; choose another name")
