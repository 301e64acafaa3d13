"""What the rollouts of a step were like, over all ranks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data.trajectories import Trajectories
from stages.algorithms.algorithm import Algorithm
from stages.environments.rewards import VERIFIER
from stages.trainer.device import largest, total

MAX_FAILED_SHARE = 0.5
"""Of the samples of a round that were put to the grader; with more of them ungraded it is broken, not a prompt."""
OWN_METRICS = frozenset(
    {
        *("reward", "success", "finished", "grader_failures", "prompts_set_aside", "groups_without_signal"),
        *("completion_length", "completion_length_shortest", "completion_length_longest"),
        *("samples_skipped", "parity", "parity_mean", "learning_rate", "gradient_norm", "importance_ratio_max"),
        *("rounds", "groups_kept", "turns"),
        *("tokens", "tokens_trained", "tokens_per_second", "rollout_tokens_per_second", "update_tokens_per_second"),
        *("seconds_rollout", "seconds_experience", "seconds_update"),
        *("staleness", "staleness_max", "groups_stale", "groups_refused", "queue_depth", "positions_set_aside"),
        *("seconds_waiting", "seconds_communication", "waiting_share", "samples_per_second"),
        *("actors", "actors_utilisation", "actors_tokens_per_second", "episodes_per_second", "weights_bytes_across"),
        *("evaluator_success", "evaluator_version"),
    }
)
"""Metrics of the stage, whatever the algorithm."""
PREFIX = "reward/"
"""Before the metrics of a term of the reward: `reward/verifier_mean`."""


class Summary(NamedTuple):
    """Of one step, the same on every rank."""

    metrics: dict[str, float]
    tokens: int
    """Tokens generated."""
    failed: list[str]
    """Ids of the prompts of which a sample could not be graded."""


def summarise(trajectories: Trajectories, ids: Sequence[str], terms: Sequence[str], max_turns: int = 1) -> Summary:
    """Sum up a step whose prompts had these `ids`, and whose reward had these terms. All ranks call it together."""
    graded = trajectories.graded
    failed = np.bincount(trajectories.groups[~graded], minlength=len(ids))
    rewards, lengths = trajectories.rewards[graded], trajectories.completion_lengths
    succeeded = trajectories.terms[graded, terms.index(VERIFIER)] if VERIFIER in terms else rewards
    groups, agreeing = groups_without_signal(rewards, trajectories.groups[graded])
    samples, count, tokens, reward, success, finished, groups, agreeing, *failed_by_prompt = total(
        len(trajectories),
        int(graded.sum()),
        int(lengths.sum()),
        float(rewards.sum()),
        int((succeeded >= 1).sum()),
        int(trajectories.finished.sum()),
        groups,
        agreeing,
        *failed.tolist(),
    )
    failed_ids = [name for name, failures in zip(ids, failed_by_prompt, strict=True) if failures]
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
        **term_metrics(trajectories, terms),
    }
    if max_turns > 1:
        metrics["turns"] = total(int(trajectories.turns.sum()))[0] / samples
    return Summary(metrics, int(tokens), failed_ids)


def broken_grader(trajectories: Trajectories, terms: Sequence[str]) -> str:
    """What is wrong when the grader or a term failed on more than MAX_FAILED_SHARE of a round's samples, else ''.

    All ranks call it together; those without an example of their own name none.
    """
    ungraded = ~trajectories.graded
    failed, put = total(int(ungraded.sum()), int((trajectories.finished | ungraded).sum()))
    if failed <= MAX_FAILED_SHARE * put:
        return ""
    terms = [term for index, term in enumerate(terms) if np.isnan(trajectories.terms[:, index]).any()]
    named = f", the term {', '.join(terms)}" if terms else ""
    named += f", for example of row {trajectories.prompt_ids[int(ungraded.argmax())]}" if ungraded.any() else ""
    return f"the grader failed on {failed:.0f} of the {put:.0f} samples that were put to it{named}; the log says why"


def term_metrics(trajectories: Trajectories, terms: Sequence[str]) -> dict[str, float]:
    """Mean and standard deviation of each term over the graded samples, and the share of all on which it failed."""
    columns, graded = trajectories.terms.astype(np.float64), trajectories.graded
    values = columns[graded]
    samples, count, *sums = total(
        len(graded),
        int(graded.sum()),
        *values.sum(axis=0).tolist(),
        *(values**2).sum(axis=0).tolist(),
        *np.isnan(columns).sum(axis=0).tolist(),
    )
    metrics: dict[str, float] = {}
    for term, sum_of, squares, failed in zip(terms, *np.array_split(sums, 3), strict=True):
        mean = sum_of / max(count, 1)
        metrics[f"{PREFIX}{term}_mean"] = float(mean)
        metrics[f"{PREFIX}{term}_std"] = float(np.sqrt(max(squares / max(count, 1) - mean**2, 0.0)))
        metrics[f"{PREFIX}{term}_failed"] = float(failed / samples)
    return metrics


def groups_without_signal(rewards: npt.NDArray[np.float32], groups: npt.NDArray[np.int32]) -> tuple[int, int]:
    """How many groups these samples are of, and in how many of them all samples earned the same."""
    order = np.lexsort((rewards, groups))
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    ends = np.append(starts[1:], len(order)) - 1
    return len(starts), int((rewards[order][ends] == rewards[order][starts]).sum()) if len(starts) else 0


def check_metric_names(algorithm: Algorithm) -> None:
    """ValueError when an algorithm calls a metric by a name of the stage's own."""
    names = algorithm.experience_metrics.keys() | algorithm.update_metrics.keys()
    taken = sorted(OWN_METRICS & names) + sorted(name for name in names if name.startswith(PREFIX))
    if taken:
        raise ValueError(f"{algorithm.name}: metrics: the rl stage has its own {', '.join(taken)}; choose another name")
