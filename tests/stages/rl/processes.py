"""For `protocol.py`: actors, and shards with the real Shelf and a journal that is either the real one or in memory."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from data.segments import Origin, origin
from data.trajectories import Trajectories
from stages.rl.messages import Ended, Inventory, Lease, Shelved
from stages.rl.state import State
from stages.rl.store.journal import Journal
from stages.rl.store.shelf import Shelf


class Writes(Protocol):
    """The journal of one process of a shard; what it has written outlives it."""

    def write_groups(self, groups: Collection[Origin]) -> None: ...
    def load(self, cursor: int) -> list[Origin]: ...
    def trained(self, groups: Collection[Origin]) -> None: ...
    def throw(self, groups: Collection[Origin]) -> None: ...
    def committed(self, cursor: int) -> None: ...


class Memory:
    """A journal in the memory of the test, with a group in each segment."""

    def __init__(self, durable: set[Origin], shard: int, shards: int) -> None:
        self.durable, self.shard, self.shards = durable, shard, shards

    def write_groups(self, groups: Collection[Origin]) -> None:
        self.durable.update(groups)

    def load(self, cursor: int) -> list[Origin]:
        mine = [group for group in self.durable if group.position % self.shards == self.shard]
        return [group for group in mine if group.position >= cursor]

    def trained(self, groups: Collection[Origin]) -> None:
        assert self.durable.issuperset(groups)

    def throw(self, groups: Collection[Origin]) -> None:
        self.durable.difference_update(groups)

    def committed(self, cursor: int) -> None:
        mine = [group for group in self.durable if group.position % self.shards == self.shard]
        self.durable.difference_update(group for group in mine if group.position < cursor)


class Files(Journal):
    """The real one."""

    def write_groups(self, groups: Collection[Origin]) -> None:
        parts = [played(group.tokens, group.oldest) for group in groups]
        origins = [
            origin(group.position, group.attempt, group.whole, group.played, "a", group.lease, part)
            for group, part in zip(groups, parts, strict=True)
        ]
        assert origins == list(groups)
        self.write(origins, parts)


def played(tokens: int, version: int) -> Trajectories:
    """A sample of so many tokens."""
    return Trajectories(
        tokens=np.zeros(tokens, np.int32), mask=np.ones(tokens, np.bool_), logprobs=np.zeros(tokens, np.float32),
        versions=np.full(tokens, version, np.int32), offsets=np.array([0, tokens]), prompt_lengths=np.ones(1, np.int32),
        rewards=np.zeros(1, np.float32), terms=np.zeros((1, 1), np.float32), finished=np.ones(1, np.bool_),
        limits=np.ones(1, np.int32), graded=np.ones(1, np.bool_), groups=np.zeros(1, np.int32),
        seeds=np.zeros(1, np.int64), prompt_ids=("p",),
    )  # fmt: skip


def group_like(lease: Lease, *, whole: bool, tokens: int, version: int, when: float) -> Origin:
    """As its shard will see it."""
    return origin(lease.position, lease.attempt, whole, when, "a", lease.id, played(tokens, version))


class Shard:
    """A process of a shard."""

    def __init__(self, number: int, shards: int, start: str, bound: int, journal: Writes) -> None:
        self.number, self.shards, self.start, self.journal = number, shards, start, journal
        self.shelf = Shelf(bound)
        self.waiting: list[Origin] = []
        """Taken in, and on their way to the disk."""
        self.written: list[Origin] = []
        """On the disk, and nobody knows it."""

    def restore(self, state: State, committed: int, promised: set[Origin]) -> None:
        found = self.journal.load(state.cursor)
        mine = {group for group in promised if group.position % self.shards == self.number}
        assert {group for group in mine if group.position >= state.cursor} <= set(found), "acknowledged, and lost"
        self.shelf.restore(state.cursor, state.ahead, state.attempts, found)
        self.tidy(committed, promised)

    def put(self, group: Origin) -> str:
        decision = self.shelf.put(group)
        if decision == "kept":
            self.waiting.append(group)
        return decision

    def write(self) -> None:
        if self.waiting:
            self.journal.write_groups(self.waiting)
            self.written, self.waiting = self.written + self.waiting, []

    def settle(self, promised: set[Origin]) -> dict[Origin, str]:
        """What may be said of all that is written."""
        decisions = {group: self.shelf.settle(group) for group in self.written}
        self.written = []
        promised.update(group for group, decision in decisions.items() if decision == "kept")
        self.tidy(0, promised)
        return decisions

    def hear(self, state: State, committed: int, promised: set[Origin]) -> None:
        self.shelf.again(state.attempts)
        self.shelf.done(state.cursor, state.ahead)
        self.tidy(committed, promised)

    def tidy(self, committed: int, promised: set[Origin]) -> None:
        thrown, trained = self.shelf.thrown, self.shelf.trained
        self.shelf.thrown, self.shelf.trained = [], []
        promised.difference_update(thrown)
        self.journal.trained(trained)
        self.journal.throw(thrown)
        self.journal.committed(committed)

    def known(self) -> dict[int, Origin]:
        return {group.position: group for group, _ in self.shelf.groups()}

    def inventory(self) -> Inventory:
        shelved = tuple(
            Shelved(position=group.position, attempt=group.attempt, state=state, oldest=group.oldest)
            for group, state in self.shelf.groups()
        )
        return Inventory(start=self.start, shelved=shelved, num_bytes=0, room=1)


@dataclass
class Actor:
    """An actor: its leases, and what it has to say at its next renewal."""

    name: str
    leases: dict[str, Lease] = field(default_factory=dict[str, Lease])
    versions: dict[str, int] = field(default_factory=dict[str, int])
    """Of the weights with which each was begun."""
    hung: set[str] = field(default_factory=set[str])
    """Those that never end."""
    putting: dict[str, Origin] = field(default_factory=dict[str, Origin])
    """Those that are put, and wait for the answer."""
    ended: list[Ended] = field(default_factory=list[Ended])
    joined: bool = False

    def forget(self, id: str) -> Lease | None:
        self.versions.pop(id, None)
        self.putting.pop(id, None)
        self.hung.discard(id)
        return self.leases.pop(id, None)
