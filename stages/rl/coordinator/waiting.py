"""What is given out next: first positions that have to be played again, then new ones. Pure.

Those that are half played are in the window already; the others need room in it. So there are two queues.
"""

import heapq
from collections.abc import Callable, Mapping
from typing import NamedTuple

from stages.rl.coordinator.facts import Facts
from stages.rl.coordinator.promises import Promises

KEPT = 64
"""Reasons of positions that the learner has set aside, the newest."""
Queue = list[tuple[int, int]]
"""A heap of (place, position). An entry that is not true any more is passed over when its turn comes."""


class Gone(NamedTuple):
    """A group that its shard no longer has, before the learner has said what became of it."""

    attempt: int
    since: float
    version: int
    """Of the learner, when it was missed."""


class Waiting:
    """Positions that nobody plays, and those that were tried too often."""

    def __init__(
        self, facts: Facts, promises: Promises, max_attempts: int, drop: bool, losses: Mapping[int, int],
        set_aside: Mapping[int, str],
    ) -> None:  # fmt: skip
        """`drop`: samples that were too old come back behind all prompts that wait, and not before them."""
        self.losses, self.set_aside = dict(losses), dict(set_aside)
        """How often each position was lost with its actor or failed (what learners threw away counts on top); those
        that were tried too often, and why, until the learner has them as done with."""
        self.reasons: dict[int, str] = {}
        """The same of those that the learner has set aside by now; a person may ask."""
        self.next = 0
        """The lowest position that was never heard of."""
        self._facts, self._promises, self._max_attempts, self._drop = facts, promises, max_attempts, drop
        self._gone: dict[int, Gone] = {}
        self._places: dict[int, int] = {}
        self._begun, self._new = Queue(), Queue()

    def give(self, room: int) -> int | None:
        """The next one; without `room`, of those that are half played."""
        while (queue := self._first(room)) is not None:
            place, position = heapq.heappop(queue)
            if queue is self._begun and not self.is_begun(position):
                heapq.heappush(self._new, (place, position))
                continue
            del self._places[position]
            return position
        while room > 0:
            position, self.next = self.next, self.next + 1
            if not self._facts.is_done(position) and position not in self.set_aside:
                return position
        return None

    def is_begun(self, position: int) -> bool:
        """Whether its shard has, or may have, a beginning; it is in the window then."""
        return position in self._promises.handed or self._facts.is_begun(position)

    def again(self, position: int, why: str = "too old", *, late: bool = False) -> None:
        """Nobody plays it: it is given out again, unless it was tried too often."""
        if self._facts.is_done(position) or position in self._promises.leased:
            self._gone.pop(position, None)
            return
        tries = self._facts.tries(position) + self.losses.get(position, 0)
        self.forget(position)
        if tries >= self._max_attempts:
            self.set_aside[position] = f"tried {tries} times; the last time {why}"
        else:
            self._queue(position, self.next if late else position)

    def lost(self, position: int, why: str) -> None:
        """Its actor is gone with it, or could not play it."""
        self.losses[position] = self.losses.get(position, 0) + 1
        self.again(position, why)

    def thrown_away(self, position: int) -> None:
        """What its shard had was too old."""
        self.again(position, late=self._drop)

    def missed(self, position: int, attempt: int, now: float) -> None:
        """Its shard had it, and has it no more: trained, or thrown away, as the learner will say, or lost."""
        if self._facts.is_done(position):
            return
        self._gone.setdefault(position, Gone(attempt, now, self._facts.version))
        if self._facts.attempt(position) > attempt:
            self.thrown_away(position)

    def found(self, position: int, *, whole: bool) -> None:
        """Its shard has it."""
        if whole:
            self.forget(position)
        elif position in self._places:
            self._queue(position, self._places[position])
        self._gone.pop(position, None)

    def forget(self, position: int) -> None:
        """It waits no more, whether it is played or was found; it may be set aside no longer either."""
        for known in (self._places, self.set_aside, self._gone):
            known.pop(position, None)

    def learner_said(self) -> None:
        """What is done with is forgotten, and of what is gone it is clear now what became of it."""
        told = [(p, why) for p, why in (self.reasons | self.set_aside).items() if self._facts.is_done(p)]
        self.reasons = dict(told[-KEPT:])
        for known in (self.losses, self.set_aside, self._places, self._gone):
            for position in [position for position in known if self._facts.is_done(position)]:
                del known[position]
        for position, gone in list(self._gone.items()):
            if self._facts.attempt(position) > gone.attempt or self._facts.version > gone.version:
                self.thrown_away(position)

    def find(self, before: float, out: Callable[[int], bool]) -> None:
        """What nobody has said a word of is given out again: what is gone since `before`, and what was never there.

        No more at once than could have room, so that one position that is absurdly high costs nothing.
        """
        for position, gone in list(self._gone.items()):
            if gone.since < before:
                self.again(position)
        known = (self._places, self.set_aside, self._gone)
        missing = self._facts.open(self.next, self._facts.window, lambda p: out(p) or any(p in k for k in known))
        begun = [p for p in self._facts.begun() if p not in self._promises and not any(p in k for k in known)]
        for position in (*missing, *begun):
            self.again(position)

    def _queue(self, position: int, place: int) -> None:
        self._places[position] = place
        heapq.heappush(self._begun if self.is_begun(position) else self._new, (place, position))

    def _first(self, room: int) -> Queue | None:
        queues = [queue for queue in ((self._begun, self._new) if room > 0 else (self._begun,)) if self._is_true(queue)]
        return min(queues, key=lambda queue: queue[0], default=None)

    def _is_true(self, queue: Queue) -> bool:
        """Whether there is one; its first entry is true then."""
        while queue and self._places.get(queue[0][1]) != queue[0][0]:
            heapq.heappop(queue)
        return bool(queue)
