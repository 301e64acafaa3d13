"""The asynchronous protocol in one process: the real Shelf, Leases and Coordinator, and a model of all around them.

What is modelled: journals (what is durable, and what is thrown away), actors, the learner and its checkpoint, and a
network in which answers get lost and puts arrive late.
"""

from dataclasses import dataclass, field, replace
from itertools import count

from data.transport.endpoint import Endpoint
from stages.rl.config import AsynchronousConfig
from stages.rl.coordinator.coordinator import Coordinator
from stages.rl.coordinator.table import Table
from stages.rl.messages import Advance, Ended, Inventory, Join, Lease, Renewal, Shelved, Source
from stages.rl.store.shelf import Group, Shelf

SOURCE = Source(version=0, digest="", num_bytes=0, endpoint=Endpoint(host="here", port=1, token="t"))
LEASE_SECONDS = 30.0


@dataclass
class Shard:
    """A shard with its journal, which outlives it."""

    number: int
    bound: int
    durable: set[Group] = field(default_factory=set[Group])
    shelf: Shelf = field(init=False)
    start: int = 0

    def __post_init__(self) -> None:
        self.shelf = Shelf(self.bound)

    def kill(self) -> None:
        self.start += 1
        self.shelf = Shelf(self.bound)

    def restore(self, state: "State") -> None:
        self.shelf.restore(state.cursor, state.ahead, state.attempts, self.durable)
        self._clean()

    def put(self, group: Group) -> str:
        """The journal writes at once, so "kept" is durable, and said to the actor."""
        verdict = self.shelf.put(group)
        if verdict == "kept":
            self.durable.add(group)
            self.shelf.settle(group)
        self._clean()
        return verdict

    def again(self, attempts: dict[int, int]) -> None:
        self.shelf.again(attempts)
        self._clean()

    def done(self, state: "State") -> None:
        self.shelf.done(state.cursor, state.ahead)
        self._clean()

    def _clean(self) -> None:
        self.durable.difference_update(self.shelf.thrown)
        self.shelf.thrown.clear()
        self.shelf.trained.clear()

    def known(self) -> dict[int, Group]:
        return {group.position: group for group, _ in self.shelf.groups()}

    def inventory(self) -> Inventory:
        shelved = tuple(
            Shelved(position=group.position, attempt=group.attempt, state=state, oldest=group.oldest)
            for group, state in self.shelf.groups()
        )
        return Inventory(start=f"{self.number}-{self.start}", shelved=shelved, num_bytes=0, room=1)


@dataclass(frozen=True)
class State:
    """What the learner's checkpoint has."""

    version: int = 0
    cursor: int = 0
    ahead: tuple[int, ...] = ()
    attempts: dict[int, int] = field(default_factory=dict[int, int])
    trained: tuple[int, ...] = ()
    """Every position that the weights have learned from, in order: the surviving history."""
    aside: tuple[int, ...] = ()

    def is_done(self, position: int) -> bool:
        return position < self.cursor or position in self.ahead

    def finish(self, positions: set[int]) -> "State":
        ahead, cursor = set(self.ahead) | positions, self.cursor
        while cursor in ahead:
            cursor += 1
        left = tuple(sorted(position for position in ahead if position >= cursor))
        done = set(range(cursor)) | set(left)
        attempts = {position: found for position, found in self.attempts.items() if position not in done}
        return replace(self, cursor=cursor, ahead=left, attempts=attempts)


@dataclass
class Actor:
    """An actor: its leases, and what it has to say at its next renewal."""

    name: str
    leases: dict[str, Lease] = field(default_factory=dict[str, Lease])
    begun: dict[str, int] = field(default_factory=dict[str, int])
    """Tokens of what it plays."""
    ended: list[Ended] = field(default_factory=list[Ended])
    joined: bool = False


class World:
    """All processes of a run."""

    def __init__(self, shards: int, prompts: int, staleness: int, attempts: int, bound: int, stale: str) -> None:
        self.config = AsynchronousConfig.model_validate(
            {"max_staleness": staleness, "max_attempts": attempts, "lease_seconds": LEASE_SECONDS, "stale": stale}
        )
        self.prompts, self.window, self.bound = prompts, (staleness + 1) * prompts, bound
        self.now, self.names, self.starts = 1000.0, count(), count()
        self.shards = [Shard(number, bound) for number in range(shards)]
        self.state = self.checkpoint = State()
        self.taken: list[Group] = []
        self.late: list[Group] = []
        self.untold: set[int] = set()
        """Shards to which something came that the coordinator can't know of before it asks them."""
        self.actors: dict[str, Actor] = {}
        self.table = Table()
        self.coordinator = self._coordinator()
        self.start_learner()

    def _coordinator(self) -> Coordinator:
        start = f"c{next(self.starts)}"
        return Coordinator(self.config, len(self.shards), "", start, self.table, self.now)

    # Coordinator

    def kill_coordinator(self) -> None:
        """All that it had in memory is gone; the table on disk is as it was last written."""
        self.coordinator = self._coordinator()

    def write_table(self) -> None:
        self.table = self.coordinator.table(self.now)

    def poll(self, number: int) -> None:
        shard = self.shards[number]
        if shard.shelf.restored:
            self.coordinator.inventory(number, shard.inventory(), self.now)
            self.untold.discard(number)

    def sweep(self, seconds: float) -> None:
        self.now += seconds
        self.coordinator.sweep(self.now)

    def check_window(self, before: int, brought: int, given: tuple[Lease, ...]) -> None:
        """Nothing new is given out beyond the window, and what is out beyond it, comes from elsewhere.

        `before` groups were out before a call in which an actor `brought` leases of an earlier coordinator. They may
        be more than the window has room for, as may be what a learner that went back to its checkpoint has to learn
        from again; then nothing new is given out until all is within the window.
        """
        out = self.coordinator.leases.out
        assert out <= max(self.window, before + brought)
        if any(not lease.partial for lease in given):
            assert out <= self.window
            assert len(self.coordinator.leases.leased()) <= self.window
            shelved = {p for shard in self.shards for p in shard.known() if not self.state.is_done(p)}
            if not self.untold:
                assert len(shelved | set(self.coordinator.leases.leased())) <= self.window, "by what there really is"

    # Actors

    def new_actor(self) -> Actor:
        name = f"a{next(self.names)}"
        self.actors[name] = Actor(name)
        return self.actors[name]

    def renew(self, actor: Actor, want: int, answered: bool = True) -> None:
        """One call; when the answer gets lost, the actor says the same again the next time."""
        self.now += 0.01
        if not actor.joined:
            self.coordinator.join(Join(member=actor.name, node="n", samples_at_once=8), self.now)
            actor.joined = True
        living = self.coordinator.members.living.get(actor.name)
        brought = len(actor.leases) if living and living.fresh else 0
        before = self.coordinator.leases.out
        orders = self.coordinator.renew(
            Renewal(
                member=actor.name,
                holding=tuple(actor.leases),
                leases=tuple(actor.leases.values()),
                ended=tuple(actor.ended),
                want=want,
            ),
            self.now,
        )
        self.check_window(before, brought, orders.leases)
        if not answered:
            return
        if orders.stranger:
            actor.joined = False
            return
        actor.ended = []
        for lost in orders.lost:
            lease = actor.leases.pop(lost, None)
            if lease is not None:
                self.late.append(self._group(lease, whole=True, tokens=9))  # it may be on its way to the store
        for lease in orders.leases:
            assert lease.id not in actor.leases
            actor.leases[lease.id] = lease

    def _group(self, lease: Lease, *, whole: bool, tokens: int) -> Group:
        return Group(
            lease.position, lease.attempt, whole, samples=1, tokens=tokens, oldest=self.state.version, num_bytes=1
        )

    def shard_of(self, position: int) -> Shard:
        return self.shards[position % len(self.shards)]

    def put(self, actor: Actor, id: str, *, whole: bool, forgets: bool = False) -> bool:
        """Put a group; whether it is acknowledged. With `forgets` the answer gets lost, and the lease is kept."""
        lease = actor.leases[id]
        begun = self.shard_of(lease.position).known().get(lease.position)
        tokens = 9 if whole else (begun.tokens if begun and lease.partial else 0) + 1
        group = self._group(lease, whole=whole, tokens=tokens)
        verdict = self.shard_of(lease.position).put(group)
        if lease.position not in self.coordinator.leases.leased():
            self.untold.add(lease.position % len(self.shards))
        if verdict in ("not yet", "full", "pending") or forgets:
            return False
        del actor.leases[id]
        actor.ended.append(Ended(id=id, how="stored" if whole else "handed back"))
        return True

    def kill_actor(self, actor: Actor) -> None:
        """What it was putting may still arrive, at any time."""
        del self.actors[actor.name]
        self.late += [self._group(lease, whole=True, tokens=9) for lease in actor.leases.values()]

    def arrive(self, index: int) -> None:
        group = self.late.pop(index)
        self.untold.add(group.position % len(self.shards))
        self.shard_of(group.position).put(group)

    # Learner

    def start_learner(self) -> None:
        """From the checkpoint: the shards are restored, the coordinator is told."""
        self.state, self.taken = self.checkpoint, []
        self.untold = set(range(len(self.shards)))
        for shard in self.shards:
            shard.restore(self.state)
        self.advance()

    def restore_shard(self, number: int) -> None:
        """As the learner does when it finds that a shard was started anew."""
        if not self.shards[number].shelf.restored:
            self.shards[number].restore(self.state)
            self.untold.add(number)

    def advance(self) -> None:
        state = self.state
        status = self.coordinator.advance(
            Advance(
                version=state.version,
                source=SOURCE.model_copy(update={"version": state.version}),
                window=self.window,
                cursor=state.cursor,
                ahead=state.ahead,
                attempts=state.attempts,
                learning=len(self.taken),
            ),
            self.now,
        )
        given_up = {p for p in status.set_aside if not state.is_done(p) and p not in {g.position for g in self.taken}}
        if given_up:
            self._finish(given_up, aside=True)

    def take(self) -> None:
        """The lowest positions that are whole, once there are enough; those that are too old go back."""
        if self.taken or not all(shard.shelf.restored for shard in self.shards):
            return
        ready = sorted((g for shard in self.shards for g in shard.shelf.ready()), key=lambda group: group.position)
        picked = ready[: self.prompts]
        old = [group for group in picked if self.state.version - group.oldest > self.config.max_staleness]
        if old and self.config.stale != "keep":
            self._throw(old)
            return
        if len(picked) == self.prompts:
            for group in picked:
                self.shard_of(group.position).shelf.take([group.key])
            self.taken = picked

    def _throw(self, old: list[Group]) -> None:
        attempts = {group.position: group.attempt + 1 for group in old}
        spent = {position for position, attempt in attempts.items() if attempt >= self.config.max_attempts}
        again = {position: attempt for position, attempt in attempts.items() if position not in spent}
        self.state = replace(self.state, attempts={**self.state.attempts, **again})
        for shard in self.shards:
            mine = {position: a for position, a in again.items() if position % len(self.shards) == shard.number}
            shard.again(mine)
        if spent:
            self._finish(spent, aside=True)

    def train(self) -> None:
        """The update is made: what was taken is done with."""
        if not self.taken:
            return
        positions = [group.position for group in self.taken]
        assert not [position for position in positions if self.state.is_done(position)], "trained twice"
        trained = (*self.state.trained, *positions)
        self.state = replace(self.state, trained=trained, version=self.state.version + 1)
        self.taken = []
        self._finish(set(positions), aside=False)

    def _finish(self, positions: set[int], *, aside: bool) -> None:
        self.state = self.state.finish(positions)
        if aside:
            self.state = replace(self.state, aside=(*self.state.aside, *sorted(positions)))
        for shard in self.shards:
            if shard.shelf.restored:
                shard.done(self.state)

    def commit(self) -> None:
        if not self.taken:
            self.checkpoint = self.state

    def another_number_of_shards(self, number: int) -> None:
        """The learners are started on another number of nodes, from the checkpoint, with what all journals have."""
        durable = [group for shard in self.shards for group in shard.durable]
        self.shards = [Shard(index, self.bound) for index in range(number)]
        for group in durable:
            self.shard_of(group.position).durable.add(group)
        self.write_table()
        self.coordinator = self._coordinator()
        self.start_learner()

    # All

    def calm_round(self) -> None:
        """A second in which nothing fails."""
        for number in range(len(self.shards)):
            self.restore_shard(number)
        self.advance()
        for number in range(len(self.shards)):
            self.poll(number)
        self.sweep(1.0)
        for actor in list(self.actors.values()):
            for id in list(actor.leases):
                self.put(actor, id, whole=True)
            self.renew(actor, 4)
        self.take()
        self.train()

    def check(self) -> None:
        """No position is trained twice or passed over in the surviving history."""
        trained, aside = self.state.trained, self.state.aside
        assert len(set(trained)) == len(trained), "trained twice"
        assert not set(trained) & set(aside)
        assert set(range(self.state.cursor)) | set(self.state.ahead) == set(trained) | set(aside), "lost"
