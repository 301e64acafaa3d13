"""Who plays which position. Pure: the time is an argument, and nothing is called or written.

Leases are advice: the shards decide what is trained on. So all that is here is either a fact that somebody else keeps
(`Facts`) or a promise that may be broken (`Promises`). What is out is a set of positions, which each change of a fact
or a promise corrects for the positions that it is about: nothing is counted up and down (a count would drift with each
recovery), and a call costs the same whatever the size of the window.

Nothing new is given out beyond the window. More may be out for a while by what comes from elsewhere: leases of an
earlier coordinator whose actors come late, and groups that are learned from again after the learner went back to its
checkpoint. Then nothing new is given out until all is within it.
"""

from collections.abc import Iterable, Mapping

from stages.rl.coordinator.facts import Facts
from stages.rl.coordinator.promises import Promises
from stages.rl.coordinator.waiting import Waiting
from stages.rl.messages import Advance, Ended, Inventory, Lease


class Leases:
    """All leases of a run, and what they rest on."""

    def __init__(
        self, start: str, shards: int, lease_seconds: float, max_attempts: int, *, drop: bool = False,
        max_staleness: int | None = None, losses: Mapping[int, int] | None = None,
        set_aside: Mapping[int, str] | None = None, expected: Iterable[str] = (), grace: float = 0.0,
    ) -> None:  # fmt: skip
        """`start`, part of each lease's id, is of this process of the coordinator alone.

        `drop`: samples that were too old come back behind all prompts that wait, and not before them. `max_staleness`
        is None where nothing is too old. `expected` are members of the coordinator before this one, which have not
        said yet what they hold; they are waited for until `grace`, so that nothing is given out twice.
        """
        self.facts, self.promises = Facts(shards, max_staleness), Promises()
        self.waiting = Waiting(self.facts, self.promises, max_attempts, drop, losses or {}, set_aside or {})
        self.expected, self._grace = set(expected), grace
        self._start, self._shards, self._lease_seconds, self._given = start, shards, lease_seconds, 0
        self._out = set[int]()
        """Positions that are leased, shelved, or learned from."""
        self._seen: dict[str, float] = {}

    # What the learner and the shards say

    def advance(self, advance: Advance) -> None:
        """What is done with is what the learner says."""
        facts = self.facts
        thrown = facts.learner_says(advance)
        self.waiting.next = max(self.waiting.next, facts.end)
        self._look(self.promises.forget(facts.is_done, self._is_useless))
        self._look([position for position in self._out if facts.is_done(position)])
        self.waiting.learner_said()
        for position in thrown:
            self.promises.stored.pop(position, None)
            self._look([position])
            if position not in self._out:
                self.waiting.thrown_away(position)

    def inventory(self, shard: int, inventory: Inventory, asked: float) -> None:
        """What `shard` has; it was asked at the time `asked`, so what was put before is in it."""
        before, now = self.facts.shard_says(shard, inventory)
        self.waiting.next = max(self.waiting.next, *(position + 1 for position in now), 0)
        known = list(self.promises.asked(shard, self._shards, asked))
        for position, one in now.items():
            held = self.promises.leased.get(position)
            wanted = held.lease.attempt if held else self.facts.attempt(position)
            whole = one.state != "partial" and one.attempt >= wanted
            if whole:
                self.promises.free(position)
            self.waiting.found(position, whole=whole)
        for position, one in before.items():
            if position not in now and position not in self.promises:
                self.waiting.missed(position, one.attempt, asked)
        for position, stored in known:
            if stored and position not in now:
                self.waiting.missed(position, self.facts.attempt(position), asked)
        self._look([*before, *now, *(position for position, _ in known)])

    # What members say

    def grant(self, member: str, want: int, now: float) -> tuple[Lease, ...]:
        """As many leases as `member` wants and the window has room for, lowest positions first."""
        if not self.ready(now) or want <= 0:
            return ()
        leases = list[Lease]()
        while len(leases) < want and (position := self.waiting.give(self.room)) is not None:
            leases.append(self._lease(member, position))
        self._seen[member] = now
        return tuple(leases)

    def renew(self, member: str, holding: Iterable[str], now: float) -> tuple[str, ...]:
        """`member` lives and has these leases, of which it has lost those that are answered.

        Leases that it does not name have not reached it, and are given to others at no cost.
        """
        named, mine = set(holding), self.promises.of(member)
        for position in [position for id, position in mine.items() if id not in named]:
            self._free(position)
            self.waiting.again(position)
        self._seen[member] = now
        return tuple(sorted(named - self.promises.of(member).keys()))

    def adopt(self, member: str, leases: Iterable[Lease], now: float) -> None:
        """`member` has leases of another coordinator, which stay valid unless somebody else has the position.

        Also beyond the window: what is half played is worth more than the bound.
        """
        self._seen[member] = now
        self.expected.discard(member)
        for lease in leases:
            position = lease.position
            taken = position in self.promises.leased or position in self.promises.stored
            if taken or self._is_useless(lease) or self.facts.is_whole(position, lease.attempt):
                continue
            self.waiting.forget(position)
            self._hold(member, lease)

    def ended(self, member: str, ended: Ended, now: float) -> None:
        """What became of a lease; of one that `member` does not have, it has nothing to say."""
        position = self.promises.position(member, ended.id)
        if position is None:
            return
        self.promises.free(position)
        if ended.how == "stored":
            self.promises.stored[position] = now
        elif ended.how == "failed":
            self.waiting.lost(position, f"failed: {ended.why}")
        else:
            self.promises.handed[position] = now
            self.waiting.again(position)
        self._look([position])

    def leave(self, member: str) -> None:
        """`member` goes politely: its prompts are given to others, at no cost."""
        for position in self._released(member):
            self.waiting.again(position)
        self.expected.discard(member)

    def lost(self, member: str, why: str) -> None:
        """`member` is gone without a word; each prompt that it had is one try nearer to being set aside."""
        for position in self._released(member):
            self.waiting.lost(position, f"lost with {member}: {why}")

    def lost_before(self, member: str, positions: Iterable[int]) -> None:
        """`member` of the coordinator before this one went with it, and had these; who has them now, keeps them."""
        self.expected.discard(member)
        for position in positions:
            known = self.facts.is_done(position) or self.facts.is_whole(position)
            if not known and position not in self.promises.stored:
                self.waiting.lost(position, f"lost with {member} and the coordinator")

    def expire(self, now: float) -> tuple[str, ...]:
        """Give out again what nobody has any more. Returns the members that were silent for too long."""
        silent = tuple(member for member, seen in self._seen.items() if now - seen > self._lease_seconds)
        for member in silent:
            self.lost(member, f"silent for {self._lease_seconds:.0f} s")
        if self.ready(now):
            self.waiting.find(now - self._lease_seconds, self._out.__contains__)
        return silent

    # What is known

    def ready(self, now: float) -> bool:
        """Whether enough is known to give out leases: the learner, all shards and all members have spoken."""
        return self.facts.complete and (not self.expected or now >= self._grace)

    @property
    def room(self) -> int:
        """New groups that may be begun."""
        return max(0, self.facts.window - self.out)

    @property
    def out(self) -> int:
        """Groups that are leased, shelved, or learned from: what a learner took, its shard has until it is done."""
        return len(self._out)

    def held(self, member: str) -> tuple[int, ...]:
        """Positions that `member` has."""
        return tuple(self.promises.of(member).values())

    # In here

    def _look(self, positions: Iterable[int]) -> None:
        """Something has changed about these: they may be out, or no longer."""
        for position in positions:
            if position in self.promises or (self.facts.is_shelved(position) and not self.facts.is_done(position)):
                self._out.add(position)
            else:
                self._out.discard(position)

    def _released(self, member: str) -> tuple[int, ...]:
        self._seen.pop(member, None)
        positions = self.held(member)
        for position in positions:
            self._free(position)
        return positions

    def _is_useless(self, lease: Lease) -> bool:
        return self.facts.is_done(lease.position) or lease.attempt < self.facts.attempt(lease.position)

    def _lease(self, member: str, position: int) -> Lease:
        self._given += 1
        # What is half played and too old is played anew: nobody would learn from it.
        partial = self.waiting.is_begun(position) and not self.facts.is_too_old(position)
        id, attempt = f"{self._start}-{self._given}", self.facts.attempt(position)
        lease = Lease(id=id, position=position, attempt=attempt, partial=partial)
        self._hold(member, lease)
        return lease

    def _hold(self, member: str, lease: Lease) -> None:
        self.promises.hold(member, lease)
        self.waiting.next = max(self.waiting.next, lease.position + 1)
        self._look([lease.position])

    def _free(self, position: int) -> None:
        self.promises.free(position)
        self._look([position])
