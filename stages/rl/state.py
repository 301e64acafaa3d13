"""What a checkpoint of the rl stage says beside the tensors: all of it committed together with them."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from stages.rl.positions import positions, ranges

MAX_FAILURES = 3
"""A prompt whose grading has failed in so many steps is set aside: it would fail for ever."""


@dataclass(frozen=True)
class State:
    """Where the run stands after a step."""

    cursor: int = 0
    """All positions of the stream of prompts before this one are done with: trained or set aside."""
    policy_version: int = 0
    """Steps that the weights have behind them, which is the version that the next rollouts carry."""
    tokens: int = 0
    """Tokens generated so far."""
    seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict[str, int])
    """By id of a prompt, the steps in which grading one of its samples has failed."""
    ahead: tuple[int, ...] = ()
    """Positions from the cursor on that are done with as well, in order; in asynchronous mode only."""
    attempts: dict[int, int] = field(default_factory=dict[int, int])
    """By position that is not done with, how often its samples were thrown away; in asynchronous mode only."""
    excused: dict[int, int] = field(default_factory=dict[int, int])
    """By such a position, how many of them were no fault of its, and do not count among its tries: see `refused`."""
    positions_set_aside: int = 0
    """Positions that were done with without being trained; in asynchronous mode only."""

    @property
    def set_aside(self) -> frozenset[str]:
        """Prompts that are not drawn any more."""
        return frozenset(prompt for prompt, count in self.failures.items() if count >= MAX_FAILURES)

    def after_step(self, cursor: int, tokens: int, seconds: float, failed: Sequence[str]) -> "State":
        """The state one step on; `failed` are the prompts whose grading failed in it."""
        failures = dict(self.failures)
        for prompt in sorted(set(failed)):
            failures[prompt] = failures.get(prompt, 0) + 1
        return replace(
            self,
            cursor=cursor,
            policy_version=self.policy_version + 1,
            tokens=self.tokens + tokens,
            seconds=self.seconds + seconds,
            failures=failures,
        )

    def done_with(self, trained: Iterable[int], aside: Iterable[int], attempts: Mapping[int, int]) -> "State":
        """Positions were `trained`, or given up and set `aside`; `attempts` are those of what is to be played again.

        What was done with before stays as it is. In asynchronous mode only.
        """
        done, aside = set(self.ahead), {place for place in aside if not self.is_done(place)}
        done |= aside.union(place for place in trained if place >= self.cursor)
        cursor = self.cursor
        while cursor in done:
            done.remove(cursor)
            cursor += 1
        merged = {
            place: max(attempts.get(place, 0), self.attempts.get(place, 0)) for place in {**self.attempts, **attempts}
        }
        left = {place: attempt for place, attempt in merged.items() if place >= cursor and place not in done}
        excused = {place: number for place, number in self.excused.items() if place in left}
        count = self.positions_set_aside + len(aside)
        return replace(
            self, cursor=cursor, ahead=tuple(sorted(done)), attempts=left, excused=excused, positions_set_aside=count
        )

    def refused(self, attempts: Mapping[int, int]) -> "State":
        """Groups were thrown away for what lies in no prompt; `attempts` are the next. In asynchronous mode only."""
        excused = {place: self.excused.get(place, 0) + 1 for place in attempts}
        return replace(self, excused=self.excused | excused).done_with((), (), attempts)

    def joined(self, other: "State") -> "State":
        """With what was set aside or thrown away in `other`, which has gone on from an earlier state beside this one.

        Nothing was trained there. In asynchronous mode only.
        """
        return self.done_with((), [*range(self.cursor, other.cursor), *other.ahead], other.attempts)

    def is_done(self, position: int) -> bool:
        """Whether the position was trained or set aside."""
        if position < self.cursor:
            return True
        place = bisect_left(self.ahead, position)
        return place < len(self.ahead) and self.ahead[place] == position

    def to_json(self) -> dict[str, Any]:
        """As a JSON value; what is ahead as ranges."""
        return asdict(self) | {"ahead": ranges(self.ahead)}

    @staticmethod
    def from_json(saved: dict[str, Any]) -> "State":
        """What `to_json` gave, after it was JSON; of nothing, the beginning. A key that is not known is an error."""
        exact: dict[str, Any] = {"ahead": positions(saved.get("ahead", ()))}
        for name in ("attempts", "excused"):
            exact[name] = {int(place): number for place, number in saved.get(name, {}).items()}
        return State(**{**saved, **exact})
