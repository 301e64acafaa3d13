"""Who plays which position. Pure: the time is an argument, and nothing is called or written.

Leases are advice: the shards decide what is trained on. So all that is here is either a fact that somebody else keeps
(what is done with, what lies in the shards) or a promise that may be broken (a lease), and the room in the window is
worked out from them each time, never counted up and down (a count would drift with each recovery).

What is promised of the window: nothing new is given out beyond it. More than it may be out for a while by what comes
from elsewhere: leases of an earlier coordinator whose actors come late, and groups that are learned from again after
the learner went back to its checkpoint. Then nothing new is given out until all is within it.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from stages.rl.messages import Advance, Ended, Inventory, Lease, Shelved


class Held(NamedTuple):
    """A lease that is out."""

    lease: Lease
    member: str


class Gone(NamedTuple):
    """A group that its shard no longer has, before the learner has said what became of it."""

    attempt: int
    since: float
    version: int
    """Of the learner, when it was missed."""


@dataclass
class Leases:
    """All leases of a run, and what they rest on."""

    start: str
    """Part of each lease's id: of this process of the coordinator alone."""
    shards: int
    lease_seconds: float
    max_attempts: int
    drop: bool = False
    """Whether samples that were too old come back behind all prompts that wait, and not before them."""
    losses: dict[int, int] = field(default_factory=dict[int, int])
    """How often each position was lost with its actor or failed; what learners threw away counts on top."""
    set_aside: dict[int, str] = field(default_factory=dict[int, str])
    """Positions that were tried too often, and why, until the learner has them as done with."""
    expected: set[str] = field(default_factory=set[str])
    """Members of the coordinator before this one, which have not said yet what they hold."""
    grace: float = 0.0
    """The time until which they are waited for: nothing is given out before, so nothing twice."""
    _advance: Advance | None = None
    _done: frozenset[int] = frozenset()
    _inventories: dict[int, dict[int, Shelved]] = field(default_factory=dict[int, dict[int, Shelved]])
    _leased: dict[int, Held] = field(default_factory=dict[int, Held])
    _by_member: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    _seen: dict[str, float] = field(default_factory=dict[str, float])
    _stored: dict[int, float] = field(default_factory=dict[int, float])
    """Put, as their actors say, and when; their shards have not been asked since."""
    _handed: dict[int, float] = field(default_factory=dict[int, float])
    """Handed back, and when; their shards, which may have the beginning, have not been asked since."""
    _gone: dict[int, Gone] = field(default_factory=dict[int, Gone])
    _again: dict[int, int] = field(default_factory=dict[int, int])
    """Positions to be given out before any new one, and their places in the queue."""
    _next: int = 0
    """The lowest position that was never heard of."""
    _given: int = 0

    # What the learner and the shards say

    def advance(self, advance: Advance) -> None:
        """What is done with is what the learner says, also when it is less than before, as after its restart."""
        self._advance, self._done = advance, frozenset(advance.ahead)
        self._next = max(self._next, advance.cursor, *(position + 1 for position in advance.ahead))
        for held in [held for held in self._leased.values() if self._is_useless(held.lease)]:
            self._free(held.lease.position)
        for position in [position for position in self.losses if self._is_done(position)]:
            del self.losses[position]
        for position in [position for position in self.set_aside if self._is_done(position)]:
            del self.set_aside[position]
        for position in [position for position in self._stored if self._is_done(position)]:
            del self._stored[position]
        for position in [position for position in self._again if self._is_done(position)]:
            del self._again[position]
        for position in [position for position in self._handed if self._is_done(position)]:
            del self._handed[position]
        for position, gone in list(self._gone.items()):
            if self._is_done(position):
                del self._gone[position]
            elif self._attempt(position) > gone.attempt or advance.version > gone.version:
                self._requeue(position, late=self.drop)

    def inventory(self, shard: int, inventory: Inventory, asked: float) -> None:
        """What `shard` has; it was asked at the time `asked`, so what was put before is in it."""
        before = self._inventories.get(shard, {})
        now = {one.position: one for one in inventory.shelved if not self._is_done(one.position)}
        self._inventories[shard] = now
        self._next = max(self._next, *(position + 1 for position in now), 0)
        for position, one in now.items():
            self._gone.pop(position, None)
            held = self._leased.get(position)
            if one.state == "partial":
                continue
            if held is None or one.attempt >= held.lease.attempt:
                self._free(position)
                self._again.pop(position, None)
                self.set_aside.pop(position, None)
        for position, one in before.items():
            if position not in now and position not in self._leased:
                self._miss(position, one.attempt, asked)
        for position in [p for p, when in self._stored.items() if p % self.shards == shard and when <= asked]:
            del self._stored[position]
            if position not in now:
                self._miss(position, self._attempt(position), asked)
        for position in [p for p, when in self._handed.items() if p % self.shards == shard and when <= asked]:
            del self._handed[position]

    # What members say

    def grant(self, member: str, want: int, now: float) -> tuple[Lease, ...]:
        """As many leases as `member` wants and the window has room for, lowest positions first."""
        if not self.ready(now) or want <= 0:
            return ()
        room = self.room
        # A half-played group is in the window already, so it needs no room.
        waiting = heapq.nsmallest(want, self._again, key=lambda position: (self._again[position], position))
        leases = list[Lease]()
        for position in waiting:
            partial = self._partial(position)
            if partial or room > 0:
                room -= not partial
                leases.append(self._lease(member, position, partial))
        while len(leases) < want and room > 0:
            position, self._next = self._next, self._next + 1
            if not self._is_done(position) and position not in self.set_aside:
                room -= 1
                leases.append(self._lease(member, position, partial=False))
        self._seen[member] = now
        return tuple(leases)

    def renew(self, member: str, holding: Iterable[str], now: float) -> tuple[str, ...]:
        """`member` lives and has these leases, of which it has lost those that are answered.

        Leases that it does not name have not reached it, and are given to others at no cost.
        """
        named = set(holding)
        mine = self._by_member.get(member, {})
        for position in [position for id, position in mine.items() if id not in named]:
            self._free(position)
            self._requeue(position)
        self._seen[member] = now
        return tuple(sorted(named - self._by_member.get(member, {}).keys()))

    def adopt(self, member: str, leases: Iterable[Lease], now: float) -> None:
        """`member` has leases of another coordinator, which stay valid unless somebody else has the position.

        Also where their room was given to others meanwhile, since what is half played is worth more than the bound:
        then more is out than the window for a while, and nothing new is given out until it is not.
        """
        self._seen[member] = now
        self.expected.discard(member)
        for lease in leases:
            shelved = self._shelf(lease.position)
            if shelved and shelved.state != "partial" and shelved.attempt >= lease.attempt:
                continue
            if lease.position in self._leased or lease.position in self._stored or self._is_useless(lease):
                continue
            self._again.pop(lease.position, None)
            self._gone.pop(lease.position, None)
            self.set_aside.pop(lease.position, None)
            self._hold(member, lease)

    def ended(self, member: str, ended: Ended, now: float) -> None:
        """What became of a lease; of one that `member` does not have, it has nothing to say."""
        position = self._by_member.get(member, {}).get(ended.id)
        if position is None:
            return
        self._free(position)
        if ended.how == "stored":
            self._stored[position] = now
        elif ended.how == "failed":
            self._lose(position, f"failed: {ended.why}")
        else:
            self._handed[position] = now
            self._requeue(position)

    def leave(self, member: str) -> None:
        """`member` goes politely: its prompts are given to others, at no cost."""
        for position in list(self._by_member.get(member, {}).values()):
            self._free(position)
            self._requeue(position)
        self._seen.pop(member, None)
        self.expected.discard(member)

    def lost(self, member: str, why: str) -> None:
        """`member` is gone without a word, and each prompt that it had is one attempt nearer to being set aside.

        It may have been what ended it.
        """
        for position in list(self._by_member.get(member, {}).values()):
            self._free(position)
            self._lose(position, f"lost with {member}: {why}")
        self._seen.pop(member, None)

    def lost_before(self, member: str, positions: Iterable[int]) -> None:
        """`member` of the coordinator before this one went with it, and had these; who has them now, keeps them."""
        self.expected.discard(member)
        for position in positions:
            shelved = self._shelf(position)
            if self._is_done(position) or position in self._stored or (shelved and shelved.state != "partial"):
                continue
            self._lose(position, f"lost with {member} and the coordinator")

    def expire(self, now: float) -> tuple[str, ...]:
        """Give out again what nobody has any more. Returns the members that were silent for too long."""
        silent = tuple(member for member, seen in self._seen.items() if now - seen > self.lease_seconds)
        for member in silent:
            self.lost(member, f"silent for {self.lease_seconds:.0f} s")
        for position, gone in list(self._gone.items()):
            if now - gone.since > self.lease_seconds:
                self._requeue(position)
        if self.ready(now):
            self._find_missing()
        return silent

    # What is known

    def ready(self, now: float) -> bool:
        """Whether enough is known to give out leases: the learner, all shards and all members have spoken."""
        told = self._advance is not None and len(self._inventories) == self.shards
        return told and (not self.expected or now >= self.grace)

    @property
    def room(self) -> int:
        """New groups that may be begun."""
        return max(0, (self._advance.window if self._advance else 0) - self.out)

    @property
    def out(self) -> int:
        """Groups that are leased, shelved, or learned from."""
        shelved = set[int]().union(*self._inventories.values())
        positions = {position for position in shelved if not self._is_done(position)}
        positions.update(self._leased, self._stored, self._handed)
        taken = sum(one.state == "taken" for shelf in self._inventories.values() for one in shelf.values())
        learning = self._advance.learning if self._advance else 0
        # What a learner took is in its shard's inventory until it is done with; unless that shard lost it.
        return max(len(positions), len(positions) - taken + learning)

    @property
    def heard(self) -> int:
        """Shards that have said what they have."""
        return len(self._inventories)

    def held(self, member: str) -> tuple[int, ...]:
        """Positions that `member` has."""
        return tuple(self._by_member.get(member, {}).values())

    def leased(self) -> dict[int, Held]:
        """All leases, by position."""
        return dict(self._leased)

    def count(self, state: str) -> int:
        """Groups in the shards that are `state`: partial, ready or taken."""
        return sum(one.state == state for shelf in self._inventories.values() for one in shelf.values())

    # In here

    @property
    def _version(self) -> int:
        return self._advance.version if self._advance else -1

    def _is_done(self, position: int) -> bool:
        return self._advance is not None and (position < self._advance.cursor or position in self._done)

    def _attempt(self, position: int) -> int:
        return self._advance.attempts.get(position, 0) if self._advance else 0

    def _is_useless(self, lease: Lease) -> bool:
        return self._is_done(lease.position) or lease.attempt < self._attempt(lease.position)

    def _shelf(self, position: int) -> Shelved | None:
        return self._inventories.get(position % self.shards, {}).get(position)

    def _partial(self, position: int) -> bool:
        """Whether its shard has, or may have, a beginning that is still good."""
        if position in self._handed:
            return True
        shelved = self._shelf(position)
        return shelved is not None and shelved.state == "partial" and shelved.attempt >= self._attempt(position)

    def _lease(self, member: str, position: int, partial: bool) -> Lease:
        self._given += 1
        self._again.pop(position, None)
        lease = Lease(
            id=f"{self.start}-{self._given}", position=position, attempt=self._attempt(position), partial=partial
        )
        self._hold(member, lease)
        return lease

    def _hold(self, member: str, lease: Lease) -> None:
        self._leased[lease.position] = Held(lease, member)
        self._by_member.setdefault(member, {})[lease.id] = lease.position
        self._next = max(self._next, lease.position + 1)

    def _free(self, position: int) -> None:
        held = self._leased.pop(position, None)
        if held:
            mine = self._by_member[held.member]
            del mine[held.lease.id]
            if not mine:
                del self._by_member[held.member]

    def _miss(self, position: int, attempt: int, now: float) -> None:
        """Its shard had it, and has it no more: trained, or thrown away, as the learner will say, or lost."""
        if self._is_done(position):
            return
        self._gone.setdefault(position, Gone(attempt, now, self._version))
        if self._attempt(position) > attempt:
            self._requeue(position, late=self.drop)

    def _lose(self, position: int, why: str) -> None:
        self.losses[position] = self.losses.get(position, 0) + 1
        self._requeue(position, why)

    def _requeue(self, position: int, why: str = "too old", late: bool = False) -> None:
        """Give it out again, unless it was tried too often."""
        self._gone.pop(position, None)
        if self._is_done(position) or position in self._leased:
            return
        tries = self._attempt(position) + self.losses.get(position, 0)
        if tries >= self.max_attempts:
            self._again.pop(position, None)
            self.set_aside[position] = f"tried {tries} times; the last time {why}"
        else:
            self._again[position] = self._next if late else position

    def _find_missing(self) -> None:
        """Each position below the highest is somewhere; one that is not, as after a restart, is given out again."""
        assert self._advance
        shelved = set[int]().union(*self._inventories.values())
        for position in range(self._advance.cursor, self._next):
            if position in self._done or position in self._leased or position in self._again:
                continue
            if position in self._stored or position in self._gone or position in self.set_aside:
                continue
            if position not in shelved or self._partial(position):
                self._requeue(position)
