"""A shard of the trajectory store: a Flight server around a shelf and its journal."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa

from data.segments import num_bytes, origin
from data.trajectories import Trajectories
from data.transport.server import Action, Batches, Server
from data.transport.trajectories import batches, read_batches, schema
from stages.rl.messages import Inventory, Shelved
from stages.rl.store.journal import Journal, group_of
from stages.rl.store.shelf import Group, Shelf, Verdict
from stages.rl.store.wire import Again, Answer, Answers, Ask, Division, Done, Nothing, Offer, Offers, Restore, Take
from stages.rl.store.writing import Waiting, Writers

SPARE = 4
"""So many times the bytes of a group are more than Arrow needs for it, offsets of each column and all."""


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
            "ready": Action(Ask, self._ready),
            "again": Action(Again, self._again),
            "done": Action(Done, self._done),
            "inventory": Action(Nothing, lambda _: self._asked()),
        }
        super().__init__(host, actions, tls=tls)
        self._shelf, self._journal, self._num_terms = shelf, journal, num_terms
        self._lock = threading.Lock()
        self._incoming = 0
        self._writers = Writers(journal, self._settle, current)

    def put(self, order: bytes, batches: Batches) -> Answers:
        """The verdict of each group that comes. One that has to wait is not kept in memory, and comes again.

        A group is on its way to the disk while the next one comes.
        """
        stream = iter(batches)
        offers = self.message(Offers, order).groups
        kept: list[Verdict | Waiting] = [self._take_in(offer, _of(offer, stream)) for offer in offers]
        if next(stream, None) is not None:
            raise pa.ArrowInvalid("more comes than was offered")
        return Answers(verdicts=tuple(one.wait() if isinstance(one, Waiting) else one for one in kept))

    def get(self, order: bytes, wanted: Callable[[], bool]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Groups that a learner takes, or the half-played one of a position, if there is one."""
        take = self.message(Take, order)
        try:
            with self._lock:
                self._check(take.start)
                groups = self._shelf.take(take.keys) if take.begun is None else self._shelf.begun(take.begun)
            parts = [_numbered(part, number) for number, part in enumerate(self._journal.read(groups))]
        except KeyError as error:
            raise pa.ArrowKeyError(f"there is no such group: {error}") from None
        return schema(self._num_terms), (batch for part in parts for batch in batches(part))

    def _offer(self, offer: Offer) -> Answer:
        """What a put would be answered now."""
        self._check_place(offer)
        with self._lock:
            return Answer(verdict=self._shelf.would_put(_offered(offer)))

    def _take_in(self, offer: Offer, batches: Iterator[pa.RecordBatch]) -> Verdict | Waiting:
        verdict = self._enter(offer)
        if verdict != "kept":
            for _ in batches:
                pass
            return verdict
        try:
            return self._keep(offer, self._receive(offer, batches))
        finally:
            with self._lock:
                self._incoming -= offer.num_bytes

    def _enter(self, offer: Offer) -> Verdict:
        """Whether the group may come; then room in memory is kept for it while it comes."""
        self._check_place(offer)
        with self._lock:
            verdict = self._shelf.would_put(_offered(offer))
            if verdict == "kept" and self._incoming and self._incoming + offer.num_bytes > self._shelf.bound:
                return "full"
            if verdict == "kept":
                self._incoming += offer.num_bytes
            return verdict

    def _check_place(self, offer: Offer) -> None:
        if offer.position % self._journal.shards != self._journal.shard:
            raise pa.ArrowKeyError(f"position {offer.position} is not of shard {self._journal.shard}")

    def _receive(self, offer: Offer, batches: Iterator[pa.RecordBatch]) -> Trajectories:
        part = read_batches(batches)
        if len(part.tokens) != offer.tokens or len(part) != offer.samples or num_bytes(part) != offer.num_bytes:
            raise pa.ArrowInvalid("the group is not the one that was offered")
        if part.terms.shape[1] != self._num_terms:
            raise pa.ArrowInvalid(f"{part.terms.shape[1]} reward terms, but the run has {self._num_terms}")
        return part

    def _keep(self, offer: Offer, part: Trajectories) -> Verdict | Waiting:
        entry = origin(offer.position, offer.attempt, offer.whole, time.time(), offer.member, part)
        group = group_of(entry)
        with self._lock:
            verdict = self._shelf.put(group)
        return self._writers.begin(Waiting(entry, group, part)) if verdict == "kept" else verdict

    def _settle(self, group: Group) -> Verdict:
        with self._lock:
            verdict = self._shelf.settle(group)
        self._tidy()
        return verdict

    def _restore(self, restore: Restore) -> Inventory:
        with self._lock:  # nothing may be settled between the look at the disk and the end
            found = self._journal.load(restore.cursor)
            self._shelf.restore(restore.cursor, restore.ahead, restore.attempts, found)
        self._tidy()
        self._journal.committed(restore.committed)
        return self._inventory()

    def _ready(self, ask: Ask) -> Inventory:
        with self._lock:
            self._check(ask.start)
            groups = self._shelf.ready()
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
        with self._lock:
            thrown, self._shelf.thrown = self._shelf.thrown, []
            trained, self._shelf.trained = self._shelf.trained, []
        self._journal.trained(trained)
        self._journal.throw(thrown)


def _shelved(group: Group, state: Literal["partial", "ready", "taken"]) -> Shelved:
    return Shelved(
        position=group.position,
        attempt=group.attempt,
        state=state,
        samples=group.samples,
        tokens=group.tokens,
        oldest=group.oldest,
        num_bytes=group.num_bytes,
        played=group.played,
    )


def _numbered(part: Trajectories, number: int) -> Trajectories:
    return replace(part, groups=np.full(len(part), number, np.int32))


def _offered(offer: Offer) -> Group:
    return Group(offer.position, offer.attempt, offer.whole, tokens=offer.tokens, num_bytes=offer.num_bytes)


def _of(offer: Offer, stream: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of one group, and no more of them than was offered: memory is kept for that."""
    left, samples = SPARE * offer.num_bytes, offer.samples
    while samples > 0:
        batch = next(stream, None)
        if batch is None:
            raise pa.ArrowInvalid("less comes than was offered")
        left, samples = left - batch.nbytes, samples - batch.num_rows
        if left < 0 or samples < 0:
            raise pa.ArrowInvalid("more comes than was offered")
        yield batch
