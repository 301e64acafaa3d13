"""A shard of the trajectory store: a Flight server around a shelf and its journal."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa

from data.segments import Origin, num_bytes, origin
from data.trajectories import Trajectories
from data.transport.server import Action, Incoming, Server
from data.transport.trajectories import batches, from_batches, schema
from stages.rl.messages import Inventory, Shelved
from stages.rl.store.arrivals import Arrival, Room, by_groups
from stages.rl.store.journal import Journal
from stages.rl.store.shelf import Decision, Shelf
from stages.rl.store.wire import (
    Again,
    Answer,
    Answers,
    Division,
    Done,
    Look,
    Nothing,
    Offer,
    Offers,
    Restore,
    Restored,
    Take,
)
from stages.rl.store.writing import Pending, Writers

READ_BYTES = 2**24
"""Of groups that are read from the disk at a time."""
ANSWER_SECONDS = 0.5
"""Until a restore that goes on is answered."""


class ShardServer(Server):
    """A put brings an `Offer` and its group; a `Take` gets groups; for the actions see below.

    A learner's call fails with KeyError where the shard was not restored since its start.
    """

    def __init__(
        self, host: str, shelf: Shelf, journal: Journal, num_terms: int, current: Callable[[], bool], *, tls: bool
    ) -> None:
        """`current` says whether this process is still the one that is announced: another has taken over if not."""
        actions = {
            "division": Action(Nothing, lambda _: Division(shard=journal.shard, shards=journal.shards)),
            "offer": Action(Offer, self._offer),
            "restore": Action(Restore, self._restore),
            "ready": Action(Look, self._ready),
            "again": Action(Again, self._again),
            "done": Action(Done, self._done),
            "inventory": Action(Nothing, lambda _: self._asked()),
        }
        super().__init__(host, actions, tls=tls)
        self._shelf, self._journal, self._num_terms = shelf, journal, num_terms
        self._lock, self._loading = threading.Lock(), threading.Lock()
        """Of the shelf, for an instant, and of the journal's list of what there is, which may take minutes to load."""
        self._settled = threading.Condition(self._lock)
        self._room = Room(shelf.bound)
        self._restore_id, self._restored = "", threading.Event()
        self._writers = Writers(journal, self._settle, current)

    def put(self, order: bytes, batches: Incoming) -> Answers:
        """The decision on each group that comes. One that has to wait is not kept in memory, and comes again.

        A group is on its way to the disk while the next one comes.
        """
        offers = self.message(Offers, order).groups
        for offer in offers:
            self._check_place(offer)
        with self._lock:
            arrival = self._room.begin()
            decisions: list[Decision] = [self._enter(arrival, offer) for offer in offers]
        found = list[Decision | Pending]()
        try:
            for some, parts in by_groups(offers, iter(batches), arrival.end):
                found += self._take_in(some, decisions[len(found) : len(found) + len(some)], parts)
        finally:
            with self._lock:
                self._room.leave(arrival)
        return Answers(decisions=tuple(one.wait() if isinstance(one, Pending) else one for one in found))

    def get(self, order: bytes, wanted: Callable[[], bool]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Groups that a learner takes, or the half-played one of a position, if there is one."""
        take = self.message(Take, order)
        try:
            with self._lock:
                self._check(take.start)
                groups = self._shelf.take(take.keys) if take.begun is None else self._shelf.begun(take.begun)
        except KeyError as error:
            raise pa.ArrowKeyError(f"there is no such group: {error}") from None
        return schema(self._num_terms), self._read(groups)

    def _read(self, groups: Sequence[Origin]) -> Iterator[pa.RecordBatch]:
        """Some groups at a time, so that small ones share a batch and not all are in memory at once."""
        first = 0
        while first < len(groups):
            last, size = first + 1, groups[first].num_bytes
            while last < len(groups) and size + groups[last].num_bytes <= READ_BYTES:
                size, last = size + groups[last].num_bytes, last + 1
            parts = self._journal.read(groups[first:last])
            yield from batches(
                Trajectories.joined([_numbered(part, number) for number, part in enumerate(parts, first)])
            )
            first = last

    def _offer(self, offer: Offer) -> Answer:
        """What a put would be answered now."""
        self._check_place(offer)
        with self._lock:
            return Answer(decision=self._shelf.would_put(_offered(offer)))

    def _enter(self, arrival: Arrival, offer: Offer) -> Decision:
        """Whether the group may come; then there is room for it while it comes."""
        decision = self._shelf.would_put(_offered(offer))
        return "full" if decision == "kept" and not self._room.takes(arrival, offer.num_bytes) else decision

    def _take_in(
        self, offers: Sequence[Offer], decisions: Sequence[Decision], batches: Sequence[pa.RecordBatch]
    ) -> Sequence[Decision | Pending]:
        if "kept" not in decisions:
            return decisions
        table, first = self._table(offers, batches), 0
        found = list[Decision | Pending]()
        for offer, decision in zip(offers, decisions, strict=True):
            group, first = table.rows(first, first + offer.samples), first + offer.samples
            if len(group.tokens) != offer.tokens or num_bytes(group) != offer.num_bytes:
                raise pa.ArrowInvalid("the group is not the one that was offered")
            found.append(self._keep(offer, group) if decision == "kept" else decision)
        return found

    def _table(self, offers: Sequence[Offer], batches: Sequence[pa.RecordBatch]) -> Trajectories:
        table = from_batches(batches)
        if table.terms.shape[1] != self._num_terms:
            raise pa.ArrowInvalid(f"{table.terms.shape[1]} reward terms, but the run has {self._num_terms}")
        return table

    def _check_place(self, offer: Offer) -> None:
        if offer.position % self._journal.shards != self._journal.shard:
            raise pa.ArrowKeyError(f"position {offer.position} is not of shard {self._journal.shard}")

    def _keep(self, offer: Offer, part: Trajectories) -> Decision | Pending:
        entry = origin(offer.position, offer.attempt, offer.whole, time.time(), offer.member, offer.lease, part)
        with self._lock:
            decision = self._shelf.put(entry)
        return self._writers.begin(Pending(entry, part)) if decision == "kept" else decision

    def _settle(self, group: Origin) -> Decision:
        with self._loading, self._lock:
            decision = self._shelf.settle(group)
            untidy = bool(self._shelf.thrown)
            self._settled.notify_all()
        if untidy:
            self._tidy()
        return decision

    def _restore(self, restore: Restore) -> Restored:
        """Begin to load the journal, if this was not asked before, and say what it has as soon as that is known."""
        with self._lock:
            if self._restore_id != restore.id:
                self._restore_id, self._restored = restore.id, threading.Event()
                self._shelf.restored = False
                threading.Thread(target=self._load, args=(restore, self._restored), name="load", daemon=True).start()
            restored = self._restored
        return Restored(inventory=self._inventory() if restored.wait(ANSWER_SECONDS) else None)

    def _load(self, restore: Restore, restored: threading.Event) -> None:
        with self._loading:  # nothing may be settled between the look at the disk and the end
            found = self._journal.load(restore.cursor)
            with self._lock:
                if self._restore_id != restore.id:
                    return
                self._shelf.restore(restore.cursor, restore.ahead, restore.attempts, found)
        self._tidy()
        self._journal.committed(restore.committed)
        restored.set()

    def _ready(self, look: Look) -> Inventory:
        with self._settled:
            self._check(look.start)
            groups = self._shelf.ready(look.missing)
            if len(groups) < look.enough:
                self._settled.wait_for(lambda: len(self._shelf.ready(look.missing)) >= look.enough, look.seconds)
                self._check(look.start)
                groups = self._shelf.ready(look.missing)
        return self._say([_shelved(group, "ready") for group in groups])

    def _again(self, again: Again) -> Nothing:
        with self._lock:
            self._check(again.start)
            self._shelf.again(again.attempts)
        self._tidy()
        return Nothing()

    def _done(self, done: Done) -> Nothing:
        with self._lock:
            self._check(done.start)
            self._shelf.done(done.cursor, done.ahead)
        self._tidy()
        self._journal.committed(done.committed)
        return Nothing()

    def _asked(self) -> Inventory:
        """Before it is restored it has not looked, so "nothing" would be wrong."""
        with self._lock:
            self._check("")
        return self._inventory()

    def _inventory(self) -> Inventory:
        with self._lock:
            shelved = [_shelved(group, state) for group, state in self._shelf.groups()]
        return self._say(shelved)

    def _say(self, shelved: list[Shelved]) -> Inventory:
        taken = self._shelf.num_bytes
        room = 0 if self._shelf.is_full else max(1, self._shelf.bound - taken)
        return Inventory(start=self._journal.start, shelved=tuple(shelved), num_bytes=taken, room=room)

    def _check(self, start: str) -> None:
        if not self._shelf.restored or start not in ("", self._journal.start):
            raise pa.ArrowKeyError("the shard was not restored since its start")

    def _tidy(self) -> None:
        with self._loading:  # what a load finds may be of use again
            with self._lock:
                thrown, self._shelf.thrown = self._shelf.thrown, []
                trained, self._shelf.trained = self._shelf.trained, []
            self._journal.trained(trained)
            self._journal.throw(thrown)


def _shelved(group: Origin, state: Literal["partial", "ready", "taken"]) -> Shelved:
    return Shelved(
        position=group.position,
        attempt=group.attempt,
        state=state,
        samples=group.samples,
        tokens=group.tokens,
        oldest=group.oldest,
        num_bytes=group.num_bytes,
        played=group.played,
        member=group.member,
        lease=group.lease,
    )


def _numbered(part: Trajectories, number: int) -> Trajectories:
    return replace(part, groups=np.full(len(part), number, np.int32))


def _offered(offer: Offer) -> Origin:
    return Origin(
        offer.position, offer.attempt, offer.whole, oldest=-1, samples=offer.samples, tokens=offer.tokens,
        num_bytes=offer.num_bytes, played=0.0, member=offer.member, lease=offer.lease,
    )  # fmt: skip
