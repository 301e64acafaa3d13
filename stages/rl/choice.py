"""Which groups a batch takes, and what becomes of those that are too old. Pure, and the same on all ranks."""

from bisect import bisect_right
from collections.abc import Iterable, Set
from itertools import count
from typing import NamedTuple

import pyarrow as pa

from stages.rl.config import AsynchronousConfig
from stages.rl.prompts import none_left, row_at
from stages.rl.state import State

OVERDUE = 4
"""Windows that a position may lag behind the newest one, until what plays it is given up: it may hang for ever."""


class Ready(NamedTuple):
    """A whole group that a shard has."""

    position: int
    attempt: int
    tokens: int
    samples: int
    oldest: int
    """Version of its tokens."""
    shard: int


class Choice(NamedTuple):
    """What to do with the groups that are ready."""

    taken: list[Ready]
    """Those to learn from, the lowest positions first."""
    again: dict[int, int]
    """Positions whose samples are thrown away, and their next attempt."""
    aside: set[int]
    """Positions that were tried too often."""
    stale: int
    """How many groups were thrown away because they were too old."""


def choose(ready: Iterable[Ready], state: State, missing: int, chosen: Set[int], config: AsynchronousConfig) -> Choice:
    """Take `missing` of the `ready` groups, beside the positions that were `chosen` before."""
    again: dict[int, int] = {}
    aside: set[int] = set()
    fresh: list[Ready] = []
    done = frozenset(state.ahead)
    for one in sorted(ready):
        position, attempt = one.position, one.attempt
        if position < state.cursor or position in done or position in chosen:
            continue
        if attempt < state.attempts.get(position, 0):
            continue
        if config.stale == "keep" or staleness(one.oldest, state.policy_version) <= config.max_staleness:
            fresh.append(one)
        elif one.oldest > state.policy_version and len(fresh) >= missing:
            continue  # its turn comes when the learner has got as far again as a kill has thrown it back
        elif tried(state, position, attempt) >= config.max_attempts:
            aside.add(position)
        else:
            again[position] = attempt + 1
    return Choice(fresh[:missing], again, aside, len(again) + len(aside))


def thrown_away(
    state: State, found: Choice, given_up: Set[int], chosen: Set[int], seed: int, ids: pa.ChunkedArray, window: int,
    config: AsynchronousConfig,
) -> State:  # fmt: skip
    """The state after a look at what is there: with what is played again or set aside, never what is learned from.

    `given_up` are positions that the coordinator has set aside, `chosen` those that earlier looks have taken.
    """
    passed_over = not_drawn(seed, ids, state, window)
    late, lost = overdue(state, window, config, passed_over)
    aside = found.aside | given_up | lost | passed_over
    learned = chosen | {one.position for one in found.taken}
    again = {position: attempt for position, attempt in (late | found.again).items() if position not in learned}
    return state.done_with((), aside - learned, again)


def staleness(oldest: int, version: int) -> int:
    """Updates between the weights that made a token and those that learn from it.

    A version beyond the present one is of updates that a kill has taken back: it is apart from the present one by them.
    Where nobody said anything, nothing is old.
    """
    return abs(version - oldest) if oldest >= 0 else 0


def tried(state: State, position: int, attempt: int) -> int:
    """How often the position was tried in vain once `attempt` is thrown away too, but for what was no fault of its."""
    return attempt + 1 - state.excused.get(position, 0)


def overdue(
    state: State, window: int, config: AsynchronousConfig, passed_over: Set[int] = frozenset()
) -> tuple[dict[int, int], set[int]]:
    """Positions that lag far behind: (attempts of those to be played again, those that were tried too often).

    By how many positions behind them are done with, but for those that were `passed_over` for their prompts.
    """
    done = frozenset(state.ahead)
    behind = [position for position in state.ahead if position not in passed_over]
    again: dict[int, int] = {}
    aside: set[int] = set()
    for position in range(state.cursor, behind[-1] if behind else 0):
        lag = len(behind) - bisect_right(behind, position)
        if lag <= OVERDUE * window:
            break
        attempt = state.attempts.get(position, 0)
        if position in done or lag <= OVERDUE * window * (attempt + 1):
            continue
        if tried(state, position, attempt) >= config.max_attempts:
            aside.add(position)
        else:
            again[position] = attempt + 1
    return again, aside


def not_drawn(seed: int, ids: pa.ChunkedArray, state: State, window: int) -> set[int]:
    """Positions of prompts that were set aside because their grading fails: nobody need play them.

    Those that are done with as well, and of the coming ones as many as lie before the next 2 windows of others. (Of
    all coming ones, up to 2 windows behind the last that is done with, each look would set aside more.) ValueError
    when that are all prompts.
    """
    if not state.set_aside:
        return set()
    if len(state.set_aside) >= len(ids):
        raise none_left(len(ids))
    done, found, others = frozenset(state.ahead), set[int](), 0
    for position in count(state.cursor):
        if ids[row_at(seed, position, len(ids))].as_py() in state.set_aside:
            found.add(position)
        elif position not in done:
            others += 1
            if others > 2 * window:
                return found
    raise AssertionError("positions have no end")
