import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data.segments import Origin, num_bytes, origin
from data.trajectories import Trajectories
from data.transport.client import Unreachable
from data.transport.trajectories import batches
from stages.rl.store import arrivals
from stages.rl.store.arrivals import Room, by_groups
from stages.rl.store.client import GaveUp, Restarted, ShardClient
from stages.rl.store.journal import Journal
from stages.rl.store.server import ShardServer
from stages.rl.store.shelf import Shelf
from stages.rl.store.wire import Offer
from tests.stages.rl.store.conftest import SECONDS, Shards, lease, played
from tests.stages.rl.store.test_shard import equal


def offered(group: Trajectories, position: int = 0) -> Offer:
    return Offer(
        position=position,
        attempt=0,
        whole=True,
        member="a",
        lease="l",
        samples=len(group),
        tokens=len(group.tokens),
        num_bytes=num_bytes(group),
    )


def test_small_groups_share_a_batch_and_large_ones_have_several_and_all_come_as_they_were_put(shards: Shards) -> None:
    shard = shards.begin()
    shard.restore(0, [], {})
    groups = [played(position) for position in range(20)]
    groups[7] = played(7, samples=3, tokens=400_000)  # 16 MB, two batches
    with ThreadPoolExecutor(len(groups)) as pool:
        puts = pool.map(lambda p: shard.put(lease(p), groups[p], True, "a"), range(len(groups)))
        assert {*puts} == {"kept"}
    order = [7, *range(19, 7, -1), *range(7)]
    taken = shard.take([(position, 0) for position in order])
    assert equal(taken, Trajectories.joined([groups[position] for position in order]))
    assert taken.groups.tolist() == [place for place, p in enumerate(order) for _ in range(len(groups[p]))]
    shards.kill()
    shard = shards.begin()
    shard.restore(0, [], {})
    assert equal(shard.take([(position, 0) for position in order]), taken)


def test_batches_are_sorted_by_groups_wherever_they_are_cut() -> None:
    groups = [played(0, samples=3), played(1, samples=2), played(2, samples=1)]
    offers = [offered(group, position) for position, group in enumerate(groups)]
    (whole,) = batches(Trajectories.joined(groups))
    for cuts in ([0, 6], [0, 3, 6], [0, 1, 3, 4, 5, 6], [0, 4, 6]):
        stream = iter([whole.slice(first, last - first) for first, last in itertools.pairwise(cuts)])
        found = list(by_groups(offers, stream, float("inf")))
        assert [offer for some, _ in found for offer in some] == offers
        for some, parts in found:
            assert sum(part.num_rows for part in parts) == sum(offer.samples for offer in some)


def test_more_than_was_offered_or_less_or_too_late_is_refused() -> None:
    group = played(0, samples=3)
    (whole,) = batches(group)

    def sort(stream: list[pa.RecordBatch], end: float = float("inf")) -> Callable[[], object]:
        return lambda: list(by_groups([offered(group)], iter(stream), end))

    for call, words in (
        (sort([whole, whole]), "more"),
        (sort([whole.slice(0, 2), whole]), "more"),
        (sort([whole.slice(0, 2)]), "less"),
        (sort([whole], -1.0), "s to come"),
    ):
        with pytest.raises(pa.ArrowInvalid, match=words):
            call()


def test_a_stream_that_stalls_keeps_others_waiting_no_longer_than_its_own_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = Room(100)
    first = room.begin()
    assert room.takes(first, 1000)  # alone it may have more than there is
    assert not room.takes(room.begin(), 1)
    room.leave(first)
    monkeypatch.setattr(arrivals, "STREAM_SECONDS", -1.0)
    assert room.takes(room.begin(), 1000)
    assert room.takes(room.begin(), 1)


class Slow(Journal):
    """Reads as long as it is told to."""

    loads = 0
    read_all = threading.Event()

    def load(self, cursor: int) -> list[Origin]:
        self.loads += 1
        assert self.read_all.wait(SECONDS)
        return super().load(cursor)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Slow, ShardClient]]:
    earlier = Journal(tmp_path, 0, 1, "earlier", {"terms": "a,b"})
    earlier.write([origin(3, 0, True, 1.0, "a", "l", played(3))], [played(3)])
    journal = Slow(tmp_path, 0, 1, "later", {"terms": "a,b"})
    server = ShardServer("127.0.0.1", Shelf(2**30), journal, 2, lambda: True, tls=False)
    server.endpoint.announce(tmp_path / "shard-0000.json")
    yield journal, ShardClient(tmp_path / "shard-0000.json", 5.0)
    journal.read_all.set()
    server.shutdown()


def test_a_restore_that_takes_longer_than_its_caller_waits_is_begun_once_and_meanwhile_all_is_answered(
    slow: tuple[Slow, ShardClient],
) -> None:
    journal, shard = slow
    for cursor in (0, 1):  # the learners go on with what the other shards have
        with pytest.raises(Unreachable, match="still reads"):
            shard.restore(cursor, [], {})
    for call in (shard.ready, shard.inventory, lambda: shard.done(1, [])):
        with pytest.raises(Restarted):
            call()
    with pytest.raises(GaveUp, match="not yet"):
        shard.put(lease(4), played(4), True, "a", lambda: True)
    journal.read_all.set()
    assert [group.position for group in shard.restore(1, [], {}).shelved] == [3]
    assert journal.loads == 1
    shard.restore(1, [], {})  # one that was answered is over: the next one looks anew
    assert journal.loads == 2


def test_a_group_that_a_restore_has_found_and_thrown_away_before_it_was_settled_harms_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0, 1, "start", {"terms": "a,b"})
    group = origin(0, 0, True, 1.0, "a", "l", played(0))
    journal.write([group], [played(0)])
    shelf = Shelf(100)
    shelf.restore(0, [], {}, [])
    shelf.put(group)
    shelf.restore(0, [], {0: 1}, journal.load(0))
    journal.throw(shelf.thrown)
    shelf.thrown = []
    assert shelf.settle(group) == "stale"
    journal.throw(shelf.thrown)
    assert journal.files() == [] and journal.load(0) == []


def test_rows_are_what_pick_gives() -> None:
    table = Trajectories.joined([played(0, samples=3), played(1), played(2)])
    some = table.rows(2, 5)
    assert equal(some, table.pick(np.arange(2, 5))) and some.tokens.base is not None
