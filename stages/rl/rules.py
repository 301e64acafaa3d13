"""What a run's metrics look like when it goes wrong. A rule says of their history how bad it is; 1 is the limit."""

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import NamedTuple

Row = Mapping[str, float | None]
"""Metrics of a step; one that is missing or None was not measured."""
History = Sequence[Row]

WINDOW = 5
"""Steps that are averaged: one step's prompts may be easy or hard."""
LONG_WINDOW = 10
"""Steps that are averaged where rewards are compared, which scatter more."""
LONG = 30
"""Steps before anything is said of a reward that does not rise."""
SOLVED = 0.9
"""Success from which a task counts as solved: then entropy may vanish, and groups agree because they are right."""


class Found(NamedTuple):
    """What a rule says of a history."""

    badness: float
    """1 is the limit."""
    seen: str


def entropy_collapse(history: History) -> Found | None:
    """Entropy is below a tenth of its start, and the task is not solved.

    Success is bought with entropy and stops where it is spent: Cui et al. 2025 (arXiv:2505.22617) fit R = b - a exp(H)
    to all their runs, whose first 200 steps spent 73% of the entropy for 76% of the gain. A tenth buys little.
    """
    start, recent = _start(history, "entropy"), _recent(history, "entropy")
    if start is None or recent is None or _solved(history):
        return None
    return Found(0.1 * start / max(recent, 1e-9), f"entropy is {recent:.3g}, and was {start:.3g} in the first steps")


def length_collapse(history: History) -> Found | None:
    """Completions are less than half as long as at the start, and no more of them succeed.

    A policy that has learned to be brief succeeds more often; one that has given up does not.
    """
    start, recent = _start(history, "completion_length"), _recent(history, "completion_length")
    success_start, success = _start(history, "success"), _recent(history, "success")
    if start is None or recent is None or success_start is None or success is None or success > success_start + 0.02:
        return None
    return Found(0.5 * start / max(recent, 1e-9), f"completions have {recent:.1f} tokens, and had {start:.1f}")


def completions_cut(history: History) -> Found | None:
    """Less than half of the completions end by themselves. A cut one earns nothing, so most of the work is lost."""
    finished = _recent(history, "finished")
    if finished is None:
        return None
    return Found((1 - finished) / 0.5, f"{1 - finished:.0%} of the completions are cut at the limit of their length")


def no_signal(history: History) -> Found | None:
    """In more than 80% of the groups all samples earn the same, and the task is not solved.

    Such a group has no advantage under a baseline of its own mean, so the batch is a fifth of what it seems (Yu et al.
    2025, arXiv:2503.14476, section 3.2, whose answer is dynamic sampling).
    """
    share = _recent(history, "groups_without_signal")
    if share is None or _solved(history):
        return None
    return Found(share / 0.8, f"in {share:.0%} of the groups all samples earn the same reward")


def reward_stuck(history: History) -> Found | None:
    """The reward of the last ten steps is not above that of the first ten by two standard errors, after 30 steps."""
    rewards = _values(history, "reward")
    if len(rewards) < LONG or _solved(history):
        return None
    first, last = rewards[:LONG_WINDOW], rewards[-LONG_WINDOW:]
    error = ((pstdev(first) ** 2 + pstdev(last) ** 2) / LONG_WINDOW) ** 0.5
    gain = (fmean(last) - fmean(first)) / max(error, 1e-9)
    badness = min(2 / gain, 2.0) if gain > 0 else 2.0
    return Found(badness, f"the reward is {fmean(last):.3g} after {len(rewards)} steps, and was {fmean(first):.3g}")


def reward_falls(history: History) -> Found | None:
    """The reward is below that of the 20 steps before by four of their deviations, or a fifth where they are steady."""
    rewards = _values(history, "reward")
    before, last = rewards[-5 * WINDOW : -WINDOW], rewards[-WINDOW:]
    if len(before) < 2 * WINDOW:
        return None
    scatter = max(pstdev(before), 0.05 * abs(fmean(before)), 1e-9)
    return Found(
        (fmean(before) - fmean(last)) / (4 * scatter), f"the reward fell from {fmean(before):.3g} to {fmean(last):.3g}"
    )


def kl_explodes(history: History) -> Found | None:
    """The policy moves by more than 0.1 nats a token within one update.

    Implementations of PPO stop an update early at 0.01 to 0.05 (target_kl in Spinning Up and Stable-Baselines3), and a
    healthy run is below 0.01. Beyond 0.1 the samples no longer say much about the policy that is trained.
    """
    kl = _recent(history, "kl")
    return None if kl is None else Found(kl / 0.1, f"the KL divergence within an update is {kl:.3g} nats a token")


def far_from_reference(history: History) -> Found | None:
    """The policy is more than 1 nat a token from the reference.

    To the reference a token that the policy chose is then e times less likely than to the policy, in geometric mean: it
    writes another language, and what it was given by SFT is going.
    """
    kl = _recent(history, "reference_kl")
    return None if kl is None else Found(kl, f"the KL divergence to the reference is {kl:.2g} nats a token")


def clip_share_high(history: History) -> Found | None:
    """More than 30% of the tokens are clipped, and teach nothing.

    Healthy token-level PPO clips a few percent at most; GSPO, which clips whole sequences, 15% (Zheng et al. 2025,
    arXiv:2507.18071, figure 2).
    """
    share = _recent(history, "clip_share")
    return None if share is None else Found(share / 0.3, f"{share:.0%} of the tokens are clipped")


def critic_useless(history: History) -> Found | None:
    """After 20 steps the critic explains less than nothing of the returns: a constant would be a better baseline."""
    explained = _recent(history, "explained_variance")
    if explained is None or len(_values(history, "explained_variance")) < 4 * WINDOW:
        return None
    return Found(1 - explained, f"the critic's explained variance is {explained:.2f}")


def _values(history: History, name: str) -> list[float]:
    return [value for row in history if (value := row.get(name)) is not None]


def _recent(history: History, name: str) -> float | None:
    """Mean over the last window; None while there is less than one."""
    values = [value for row in history[-WINDOW:] if (value := row.get(name)) is not None]
    return fmean(values) if len(history) >= WINDOW and values else None


def _start(history: History, name: str) -> float | None:
    """Mean over the first window; None while the last one overlaps it."""
    values = [value for row in history[:WINDOW] if (value := row.get(name)) is not None]
    return fmean(values) if len(history) >= 2 * WINDOW and values else None


def _solved(history: History) -> bool:
    success = _recent(history, "success")
    return success is not None and success >= SOLVED
