"""What the learner and the shards have said: facts that they keep, and say again. Pure."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from stages.rl.choice import staleness
from stages.rl.messages import Advance, Inventory, Shelved


class Facts:
    """What is done with, and what lies in the shards."""

    def __init__(self, shards: int, max_staleness: int | None = None) -> None:
        """`max_staleness` is None where nothing is too old to be learned from."""
        self.shards = shards
        self._max_staleness = max_staleness
        self._advance: Advance | None = None
        self._done: frozenset[int] = frozenset()
        self._inventories: dict[int, dict[int, Shelved]] = {}
        self._counts: dict[int, Counter[str]] = {}

    def learner_says(self, advance: Advance) -> list[int]:
        """What is done with is what the learner says, also when it is less than before, as after its restart.

        Returns the positions whose samples it has thrown away since it spoke last.
        """
        before = self._advance
        self._advance, self._done = advance, frozenset(advance.ahead)
        return [p for p, attempt in advance.attempts.items() if before and attempt > before.attempts.get(p, 0)]

    def shard_says(self, shard: int, inventory: Inventory) -> tuple[Mapping[int, Shelved], Mapping[int, Shelved]]:
        """What `shard` had before, and what it has now."""
        before = self._inventories.get(shard, {})
        now = {one.position: one for one in inventory.shelved if not self.is_done(one.position)}
        self._inventories[shard] = now
        self._counts[shard] = Counter(one.state for one in now.values())
        return before, now

    @property
    def complete(self) -> bool:
        """Whether the learner and all shards have spoken."""
        return self._advance is not None and len(self._inventories) == self.shards

    @property
    def heard(self) -> int:
        """Shards that have said what they have."""
        return len(self._inventories)

    @property
    def version(self) -> int:
        """Of the learner."""
        return self._advance.version if self._advance else -1

    @property
    def window(self) -> int:
        """Groups that may be out at the moment."""
        return self._advance.window if self._advance else 0

    @property
    def cursor(self) -> int:
        """All positions before it are done with."""
        return self._advance.cursor if self._advance else 0

    @property
    def end(self) -> int:
        """Behind all that is done with."""
        return max(self._advance.cursor, max(self._done, default=-1) + 1) if self._advance else 0

    def is_done(self, position: int) -> bool:
        """Trained, or set aside."""
        return self._advance is not None and (position < self._advance.cursor or position in self._done)

    def attempt(self, position: int) -> int:
        """Of the position, in which it is to be played now."""
        return self._advance.attempts.get(position, 0) if self._advance else 0

    def tries(self, position: int) -> int:
        """How many attempts before that one were thrown away for what may be the position's fault."""
        return self.attempt(position) - (self._advance.excused.get(position, 0) if self._advance else 0)

    def shelved(self, position: int) -> Shelved | None:
        """As its shard has it."""
        return self._inventories.get(position % self.shards, {}).get(position)

    def is_shelved(self, position: int) -> bool:
        """Whether its shard has a group that was not thrown away."""
        shelved = self.shelved(position)
        return shelved is not None and shelved.attempt >= self.attempt(position)

    def is_whole(self, position: int, attempt: int = 0) -> bool:
        """Whether its shard has a whole group of this attempt or a later one."""
        shelved = self.shelved(position)
        return shelved is not None and shelved.state != "partial" and shelved.attempt >= attempt

    def is_begun(self, position: int) -> bool:
        """Whether its shard has a half-played group of the present attempt."""
        shelved = self.shelved(position)
        return shelved is not None and shelved.state == "partial" and self.is_shelved(position)

    def is_too_old(self, position: int) -> bool:
        """Whether what its shard has would be thrown away at its turn."""
        shelved = self.shelved(position)
        if shelved is None or self._max_staleness is None:
            return False
        return staleness(shelved.oldest, self.version) > self._max_staleness

    def begun(self) -> Iterator[int]:
        """Positions whose shards have half-played groups of the present attempt."""
        for shard, counts in self._counts.items():
            if counts["partial"]:
                yield from (position for position in self._inventories[shard] if self.is_begun(position))

    def count(self, state: str) -> int:
        """Groups in the shards that are `state`: partial, ready or taken."""
        return sum(counts[state] for counts in self._counts.values())

    def open(self, end: int, most: int, leave_out: Callable[[int], bool]) -> list[int]:
        """The lowest positions before `end` that are not done with, but for those left out; at most so many."""
        found, position = list[int](), self._advance.cursor if self._advance else end
        while position < end and len(found) < most:
            if position not in self._done and not leave_out(position):
                found.append(position)
            position += 1
        return found
