"""What the rollouts of a step were like, over all ranks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data.trajectories import Trajectories
from stages.algorithms.algorithm import Algorithm
from stages.trainer.device import largest, total

MAX_FAILED_SHARE = 0.5
"""Of a step's samples; with more of them ungraded the grader is broken, not a prompt."""
OWN_METRICS = frozenset(
    {
        *("reward", "success", "finished", "grader_failures", "prompts_set_aside", "groups_without_signal"),
        *("completion_length", "completion_length_shortest", "completion_length_longest"),
        *("samples_skipped", "parity", "learning_rate", "gradient_norm", "importance_ratio_max"),
        *("rounds", "groups_kept"),
        *("tokens", "tokens_per_second", "rollout_tokens_per_second", "update_tokens_per_second"),
        *("seconds_rollout", "seconds_experience", "seconds_update"),
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
    rewards, lengths = trajectories.rewards[graded], trajectories.completion_lengths
    groups, agreeing = groups_without_signal(rewards, trajectories.groups[graded])
    samples, count, tokens, reward, success, finished, groups, agreeing, *failed_by_prompt = total(
        len(trajectories),
        int(graded.sum()),
        int(lengths.sum()),
        float(rewards.sum()),
        int((rewards >= 1).sum()),
        int(trajectories.finished.sum()),
        groups,
        agreeing,
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
        "groups_without_signal": agreeing / groups,
        "completion_length": tokens / samples,
        "completion_length_shortest": -largest(-int(lengths.min(initial=np.iinfo(np.int32).max))),
        "completion_length_longest": largest(int(lengths.max(initial=0))),
        "finished": finished / samples,
        "grader_failures": samples - count,
        "tokens": tokens,
    }
    return Summary(metrics, int(tokens), failed_ids)


def groups_without_signal(rewards: npt.NDArray[np.float32], groups: npt.NDArray[np.int32]) -> tuple[int, int]:
    """How many groups these samples are of, and in how many of them all samples earned the same."""
    order = np.lexsort((rewards, groups))
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    ends = np.append(starts[1:], len(order)) - 1
    return len(starts), int((rewards[order][ends] == rewards[order][starts]).sum()) if len(starts) else 0


def check_metric_names(algorithm: Algorithm) -> None:
    """ValueError when an algorithm calls a metric by a name of the stage's own."""
    taken = sorted(OWN_METRICS & (algorithm.experience_metrics.keys() | algorithm.update_metrics.keys()))
    if taken:
        raise ValueError(f"{algorithm.name}: metrics: the rl stage has its own {', '.join(taken)}; choose another name")
