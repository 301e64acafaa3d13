"""For `protocol.py`: what the learner has behind it, and what it is about to learn from."""

from collections.abc import Callable
from dataclasses import dataclass, field

from stages.rl.choice import Ready
from stages.rl.state import State


@dataclass
class Past:
    """What became of all positions that are done with, in the history that survives."""

    trained: list[int] = field(default_factory=list[int])
    rejected: set[int] = field(default_factory=set[int])
    """By dynamic sampling."""
    aside: set[int] = field(default_factory=set[int])

    def copy(self) -> "Past":
        return Past(list(self.trained), set(self.rejected), set(self.aside))


@dataclass
class Round:
    """What the collector was asked for, while the learner waits or while an update lasts."""

    state: State
    """As it will be when the round is learned from, with what was thrown away meanwhile, but for the `chosen` ones."""
    missing: int
    chosen: set[int]
    lacking: int = 0
    taken: list[Ready] = field(default_factory=list[Ready])
    fetched: list[Ready] = field(default_factory=list[Ready])
    teaches: Callable[[int], bool] = lambda _: True

    @property
    def is_over(self) -> bool:
        """Whether all that was taken is here."""
        return bool(self.taken) and len(self.fetched) == len(self.taken)


def done(state: State) -> set[int]:
    return set(range(state.cursor)) | set(state.ahead)
