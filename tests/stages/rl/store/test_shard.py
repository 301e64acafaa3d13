import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from checkpoints.commit import ASIDE
from data.segments import read_origins
from data.trajectories import Trajectories, read_trajectories
from data.transport.client import Unreachable
from stages.rl.store.client import GaveUp, Restarted, ShardClient, Store
from stages.rl.store.journal import remove_all
from stages.rl.store.writing import APART_SECONDS
from tests.stages.rl.store.conftest import Shards, lease, played

KILLS = 12


def equal(left: Trajectories, right: Trajectories) -> bool:
    names = Trajectories.__dataclass_fields__
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in names if name != "groups")


def test_what_was_put_is_taken_in_the_order_that_is_asked_for(shards: Shards) -> None:
    shard = shards.begin()
    shard.restore(0, [], {})
    for position in range(4):
        assert shard.put(lease(position), played(position), True, "a") == "kept"
    assert [group.position for group in shard.ready()] == [0, 1, 2, 3]
    assert {group.oldest for group in shard.ready()} == {3}
    taken = shard.take([(2, 0), (0, 0)])
    assert taken.groups.tolist() == [0, 0, 1, 1]
    assert equal(taken, Trajectories.joined([played(2), played(0)]))
    assert {group.state for group in shard.inventory().shelved} == {"taken", "ready"}


def test_h5py_alone_reads_the_journal(shards: Shards) -> None:
    shard = shards.begin()
    shard.restore(0, [], {})
    shard.put(lease(5, 2), played(5, 2), True, "actor-1")
    (path,) = shards.segments()
    with h5py.File(path) as file:
        assert file["origins"]["position"].tolist() == [5] and file["origins"]["member"][0] == b"actor-1"
        assert file["tokens"][:].tolist() == played(5, 2).tokens.tolist()
        assert file.attrs["terms"] == "verifier,length"
    assert equal(read_trajectories(path)[0], played(5, 2))


def put_all(store: Store, positions: list[int], acknowledged: dict[int, str], failed: list[BaseException]) -> None:
    try:
        for position in positions:
            acknowledged[position] = store.put(lease(position), played(position, samples=8, tokens=400), True, "a")
    except BaseException as error:
        failed.append(error)
        raise


@pytest.mark.slow
def test_a_kill_at_any_instant_loses_nothing_that_was_acknowledged_and_leaves_no_torn_file(shards: Shards) -> None:
    shard, source = shards.begin(), random.Random(0)
    shard.restore(0, [], {})
    acknowledged: dict[int, str] = {}
    failed: list[BaseException] = []
    count, workers = 600, 4
    threads = [
        threading.Thread(target=put_all, args=(shards.store(), [*range(first, count, workers)], acknowledged, failed))
        for first in range(workers)
    ]
    for thread in threads:
        thread.start()
    for _ in range(KILLS):
        before = len(acknowledged)
        while len(acknowledged) < min(count, before + 20):
            assert not failed
            time.sleep(0.001)
        time.sleep(source.random() / 50)
        shards.kill()
        known = set(acknowledged)
        shard = shards.begin()
        found = {group.position for group in shard.restore(0, [], {}).shelved}
        assert known <= found
    for thread in threads:
        thread.join()
    assert not failed and set(acknowledged) == set(range(count)) and "stale" not in acknowledged.values()
    assert len(shard.ready()) == count
    assert not [path for path in shards.segments() if path.suffix != ".h5"]
    origins = [entry.position for path in shards.segments() for entry in read_origins(path)]
    assert sorted(origins) == list(range(count))
    some = shard.take([(7, 0), (500, 0)])
    assert equal(some, Trajectories.joined([played(position, samples=8, tokens=400) for position in (7, 500)]))


def test_the_learner_notices_that_its_shard_was_started_anew(shards: Shards) -> None:
    shard = shards.begin()
    first = shard.restore(0, [], {})
    shard.put(lease(0), played(0), True, "a")
    shards.kill()
    shards.begin()
    for call in (
        shard.ready,
        shard.inventory,
        lambda: shard.take([(0, 0)]),
        lambda: shard.done(1, []),
        lambda: shard.again({0: 1}),
    ):
        with pytest.raises(Restarted):
            call()
    second = shard.restore(0, [], {})
    assert first.start != second.start
    assert [group.position for group in shard.ready()] == [0]


def test_a_restored_shard_is_not_anothers_that_was_restored_by_another_process(shards: Shards) -> None:
    shard = shards.begin()
    shard.restore(0, [], {})
    shards.kill()
    shards.begin().restore(0, [], {})
    with pytest.raises(Restarted):
        shard.ready()


def test_learners_that_went_back_to_their_checkpoint_find_again_what_was_trained_since(shards: Shards) -> None:
    shard = shards.begin()
    shard.restore(0, [], {})
    for position in range(3):
        shard.put(lease(position), played(position), True, "a")
    shard.take([(0, 0), (1, 0)])
    shard.done(2, [])
    assert [group.position for group in shard.inventory().shelved] == [2]
    assert [group.position for group in shard.restore(1, [], {}).shelved] == [1, 2]
    assert equal(shard.take([(1, 0)]), played(1))


def test_a_put_waits_while_the_shard_is_full_and_goes_on_when_the_learner_has_taken(shards: Shards) -> None:
    shard = shards.begin(num_bytes=800)
    shard.restore(0, [], {})
    for position in (0, 1):
        assert shard.put(lease(position), played(position), True, "a") == "kept"
    assert shard.inventory().room == 0
    with pytest.raises(GaveUp, match="full"):
        shard.put(lease(2), played(2), True, "a", lambda: True)
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(shard.put(lease(2), played(2), True, "a")))
    thread.start()
    shard.take([(0, 0)])
    shard.done(1, [])
    thread.join()
    assert answers == ["kept"]


def test_a_put_before_the_restore_waits_for_it(shards: Shards) -> None:
    shard = shards.begin()
    with pytest.raises(GaveUp, match="not yet"):
        shard.put(lease(0), played(0), True, "a", lambda: True)
    thread = threading.Thread(target=lambda: shard.put(lease(0), played(0), True, "a"))
    thread.start()
    shard.restore(0, [], {})
    thread.join()
    assert [group.position for group in shard.ready()] == [0]


def test_another_actor_goes_on_with_what_one_has_begun(shards: Shards) -> None:
    shard, store = shards.begin(), shards.store()
    shard.restore(0, [], {})
    assert store.begun(3) is None
    assert store.put(lease(3), played(3, tokens=8), False, "a") == "kept"
    begun = store.begun(3)
    assert begun is not None and equal(begun, played(3, tokens=8))
    assert shard.ready() == []
    assert store.put(lease(3), played(3), True, "b") == "kept"
    assert store.begun(3) is None and len(shards.segments()) == 1


def test_segments_with_nothing_of_use_go_and_those_that_were_trained_stay(shards: Shards) -> None:
    shard = shards.begin()
    shard.restore(0, [], {})
    for position in range(3):
        shard.put(lease(position), played(position), True, "a")
    shard.again({0: 1})
    shard.take([(1, 0)])
    shard.done(0, [1])
    assert [entry.position for path in shards.segments() for entry in read_origins(path)] == [1, 2]
    shards.kill()
    shard = shards.begin()
    shard.restore(0, [1], {0: 1, 2: 1})
    assert [entry.position for path in shards.segments() for entry in read_origins(path)] == [1]


def test_an_encrypted_shard_takes_groups_and_gives_them(shards: Shards) -> None:
    shard = shards.begin(tls=True)
    shard.restore(0, [], {})
    assert "BEGIN CERTIFICATE" in (shards.folder / "endpoints" / "shard-0000.json").read_text()
    assert shards.store().put(lease(0), played(0), True, "a") == "kept"
    shards.kill()
    shard = shards.begin(tls=True)
    shard.restore(0, [], {})
    assert shards.store().put(lease(1), played(1), True, "a") == "kept"
    assert equal(shard.take([(1, 0), (0, 0)]), Trajectories.joined([played(1), played(0)]))


def test_a_shard_whose_disk_is_full_says_so_ends_and_loses_nothing_that_was_acknowledged(shards: Shards) -> None:
    """The disk is full for this process: it may not make a file longer than so many bytes."""
    shard = shards.begin(file_bytes=2**16)
    shard.restore(0, [], {})
    assert shard.put(lease(0), played(0), True, "a") == "kept"
    with pytest.raises(Unreachable):
        ShardClient.put(_impatient(shard), lease(1), played(1, samples=64, tokens=400), True, "a")
    assert shards.processes.pop(0).wait(60) == 1
    said = (shards.folder / "log").read_text()
    assert f"the journal in {shards.folder / 'trajectories'} cannot be written" in said and "File too large" in said
    shard = shards.begin()
    assert [group.position for group in shard.restore(0, [], {}).shelved] == [0]
    assert shard.put(lease(1), played(1, samples=64, tokens=400), True, "a") == "kept"
    assert [path for path in shards.segments() if path.suffix == ".h5"] == shards.segments()


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_another_number_of_shards_finds_every_position(shards: Shards, before: int, after: int) -> None:
    for shard in range(before):
        shards.begin(shard, before).restore(0, [], {})
    store = shards.store()
    for position in range(12):
        store.put(lease(position), played(position), True, "a")
    for shard in range(before):
        shards.kill(shard)
    found: list[list[int]] = []
    for shard in range(after):
        inventory = shards.begin(shard, after).restore(2, [5], {})
        found.append([group.position for group in inventory.shelved])
    assert found == [[p for p in range(2, 12) if p != 5 and p % after == shard] for shard in range(after)]
    # The same client goes on, and the positions have other shards now.
    assert store.put(lease(12), played(12), True, "a") == "kept"
    assert store.put(lease(3), played(3), True, "a") == "duplicate"


def test_segments_behind_the_cursor_are_not_opened(shards: Shards) -> None:
    shard = shards.begin()
    shard.restore(0, [], {})
    for position in (0, 5):
        shard.put(lease(position), played(position), True, "a")
    shards.kill()
    shards.segments()[0].write_bytes(b"no HDF5")
    shard = shards.begin()
    assert [group.position for group in shard.restore(1, [], {}).shelved] == [5]


def test_a_shard_that_was_replaced_acknowledges_nothing_more(shards: Shards) -> None:
    """Its rank is gone, it goes on for an instant, and the next start's has read the journal."""
    old = shards.begin()
    old.restore(0, [], {})
    old.put(lease(0), played(0), True, "a")
    process = shards.processes.pop(0)
    new = shards.begin()
    new.restore(0, [], {})
    with pytest.raises(Unreachable):
        ShardClient.put(_impatient(old), lease(1), played(1), True, "a")
    assert process.wait(60) == 1
    assert new.put(lease(1), played(1), True, "a") == "kept"


def _impatient(shard: ShardClient) -> ShardClient:
    shard._seconds = 0.0
    return shard


def test_groups_of_several_threads_go_together_and_a_wrong_one_harms_no_other(shards: Shards) -> None:
    shard = shards.begin()
    shard.restore(0, [], {})
    wrong = replace(played(5), tokens=np.full(24, -1, np.int32))
    with ThreadPoolExecutor(16) as pool:
        puts = [
            pool.submit(shard.put, lease(position), wrong if position == 5 else played(position), True, "a")
            for position in range(16)
        ]
    with pytest.raises(ValueError, match="tokens are below 0"):
        puts.pop(5).result()
    assert {put.result() for put in puts} <= {"kept", "duplicate"}
    assert [group.position for group in shard.ready()] == [position for position in range(16) if position != 5]
    assert len(shards.segments()) <= 15


def train(shard: ShardClient, positions: range, committed: int) -> None:
    for position in positions:
        shard.put(lease(position), played(position), True, "a")
        shard.take([(position, 0)])
    shard.done(positions.stop, [], committed)


def positions_on_disk(shards: Shards) -> list[int]:
    return sorted(entry.position for path in shards.segments() for entry in read_origins(path))


def test_what_was_trained_stays_until_a_checkpoint_is_done_with_it_and_then_goes(shards: Shards) -> None:
    shard = shards.begin()
    shard.restore(0, [], {})
    train(shard, range(8), committed=0)
    assert positions_on_disk(shards) == [*range(8)]
    # The learner dies before it commits: all is there to be trained again, as it was played.
    assert [group.position for group in shard.restore(0, [], {}).shelved] == [*range(8)]
    assert equal(shard.take([(7, 0)]), played(7))
    shard.done(8, [], 5)
    assert positions_on_disk(shards) == [5, 6, 7]
    shard.done(8, [], 8)
    assert shards.segments() == []


def test_a_kill_between_the_commit_and_the_removal_leaves_what_the_next_start_removes(shards: Shards) -> None:
    shard = shards.begin()
    shard.restore(0, [], {})
    train(shard, range(8), committed=0)
    shard.put(lease(9), played(9), True, "a")
    shards.kill()
    shard = shards.begin()
    assert [group.position for group in shard.restore(8, [], {}, 6).shelved] == [9]
    assert positions_on_disk(shards) == [6, 7, 9]
    shards.kill()
    for number in (0, 1):  # learners of another number go on
        shards.begin(number, 2)
    assert [[one.position for one in shards.client(shard).restore(8, [], {}, 8).shelved] for shard in (0, 1)] == [
        [],
        [9],
    ]
    assert positions_on_disk(shards) == [9]


def test_positions_ahead_of_the_committed_cursor_stay(shards: Shards) -> None:
    shard = shards.begin()
    shard.restore(0, [], {})
    for position in (0, 3):
        shard.put(lease(position), played(position), True, "a")
    shard.take([(3, 0)])
    shard.done(0, [3], 0)
    shard.again({0: 1})
    assert positions_on_disk(shards) == [3]
    assert [group.position for group in shard.restore(0, [], {0: 1}).shelved] == [3]


def test_groups_that_come_soon_after_each_other_share_a_segment_and_one_that_comes_alone_is_not_kept_waiting(
    shards: Shards,
) -> None:
    shard, count = shards.begin(), 64
    shard.restore(0, [], {})
    with ThreadPoolExecutor(count) as pool:
        assert {*pool.map(lambda p: shard.put(lease(p), played(p), True, "a"), range(count))} == {"kept"}
    assert len(shards.segments()) < count / 4
    alone: list[float] = []
    for position in range(count, count + 5):
        time.sleep(2 * APART_SECONDS)
        began = time.monotonic()
        shard.put(lease(position), played(position), True, "a")
        alone.append(time.monotonic() - began)
    assert min(alone) < APART_SECONDS


def test_a_run_that_is_done_leaves_no_segments_also_of_another_number_of_shards(shards: Shards) -> None:
    for number in (0, 1):
        shard = shards.begin(number, 2)
        shard.restore(0, [], {})
        assert shard.put(lease(number), played(number), True, "a") == "kept"
    shards.kill(0)
    shards.kill(1)
    first, second = shards.segments()
    torn = second.with_name(second.name + ASIDE)
    torn.touch()
    remove_all(shards.folder, 0, 2)
    assert shards.segments() == [second, torn] and not first.exists()
    remove_all(shards.folder, 0, 1)
    assert shards.segments() == []


def test_a_group_of_another_run_is_refused_in_words(shards: Shards) -> None:
    shard = shards.begin()
    shard.restore(0, [], {})
    three = replace(played(0), terms=np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match="3 reward terms, but the run has 2"):
        shard.put(lease(0), three, True, "a")
    assert shard.ready() == []


def test_a_shard_ends_with_its_parent_and_starts_within_two_seconds(shards: Shards) -> None:
    began = time.monotonic()
    shards.begin().division()
    assert time.monotonic() - began < 10  # 0.4 s on a quiet machine
    assert "torch" not in Path(f"/proc/{shards.processes[0].pid}/maps").read_text()
