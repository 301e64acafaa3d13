from hypothesis import given, settings
from hypothesis import strategies as st

from data.segments import Origin
from stages.rl.store.shelf import Shelf


def group(position: int, attempt: int = 0, whole: bool = True, tokens: int = 8, size: int = 10) -> Origin:
    return Origin(position, attempt, whole, 0, 8, tokens, size, 1.0, "a", "l")


def restored(bound: int = 100) -> Shelf:
    shelf = Shelf(bound)
    shelf.restore(0, [], {}, [])
    return shelf


def keep(shelf: Shelf, one: Origin) -> None:
    assert shelf.put(one) == "kept"
    assert shelf.settle(one) == "kept"


def test_nothing_is_taken_in_before_the_learner_has_said_where_it_stands() -> None:
    assert Shelf(100).put(group(0)) == "not yet"


def test_a_group_that_is_not_durable_is_neither_seen_nor_acknowledged_to_anyone() -> None:
    shelf = restored()
    assert shelf.put(group(0)) == "kept"
    assert shelf.ready() == []
    assert shelf.put(group(0)) == "pending"
    assert shelf.settle(group(0)) == "kept"
    assert shelf.ready() == [group(0)]
    assert shelf.put(group(0)) == "duplicate"


def test_one_whole_group_is_enough_whatever_its_attempt() -> None:
    shelf = restored()
    keep(shelf, group(0))
    assert shelf.put(group(0, attempt=1)) == "duplicate"
    shelf.take([(0, 0)])
    assert shelf.put(group(0, attempt=2)) == "duplicate"
    shelf.done(1, [])
    assert shelf.put(group(0, attempt=3)) == "duplicate"


def test_what_was_thrown_away_is_stale_and_the_next_attempt_is_not() -> None:
    shelf = restored()
    keep(shelf, group(0))
    shelf.again({0: 1})
    assert shelf.thrown == [group(0)] and shelf.num_bytes == 0
    assert shelf.put(group(0)) == "stale"
    shelf.again({0: 1})  # said again, as after a call that failed
    keep(shelf, group(0, attempt=1))
    shelf.again({0: 1})
    assert shelf.ready() == [group(0, attempt=1)]


def test_a_longer_partial_replaces_a_shorter_one_and_a_whole_group_both() -> None:
    shelf = restored()
    keep(shelf, group(0, whole=False, tokens=3))
    assert shelf.put(group(0, whole=False, tokens=2)) == "duplicate"
    keep(shelf, group(0, whole=False, tokens=5))
    assert shelf.begun(0) == [group(0, whole=False, tokens=5)]
    keep(shelf, group(0))
    assert shelf.begun(0) == [] and shelf.ready() == [group(0)]
    assert shelf.put(group(0, whole=False, tokens=99)) == "duplicate"
    assert shelf.num_bytes == 10


def test_a_full_shelf_makes_wait_but_never_those_who_finish_what_is_begun() -> None:
    shelf = restored(bound=20)
    keep(shelf, group(0, whole=False))
    keep(shelf, group(1, whole=False))
    assert shelf.is_full and shelf.put(group(2)) == "full"
    keep(shelf, group(0, size=15))
    shelf.take([(0, 0)])
    shelf.done(1, [])
    keep(shelf, group(2))


def test_a_bound_below_a_batch_yields_to_a_learner_that_waits_by_what_it_lacks_and_no_more() -> None:
    shelf = restored(bound=5)
    keep(shelf, group(0))
    for _ in range(3):
        shelf.ready()
        assert shelf.put(group(1)) == "full"
    shelf.ready(missing=2)
    keep(shelf, group(1))
    keep(shelf, group(2))
    assert shelf.put(group(3)) == "full"
    shelf.ready(missing=1)
    shelf.take([(0, 0), (1, 0), (2, 0)])
    assert shelf.put(group(3)) == "full"


def test_after_a_restart_what_was_taken_and_not_trained_is_ready_again() -> None:
    shelf = restored()
    for position in range(3):
        keep(shelf, group(position))
    shelf.take([(0, 0), (1, 0)])
    again = Shelf(100)
    again.restore(1, [2], {}, [group(0), group(1), group(2)])
    assert again.ready() == [group(1)]
    assert again.trained == [group(0), group(2)] and again.thrown == []
    assert again.put(group(0)) == again.put(group(2)) == "duplicate"


def test_of_several_groups_of_a_position_the_best_is_restored() -> None:
    shelf = Shelf(100)
    found = [group(0, whole=False), group(0), group(1, 1), group(1, 0), group(2, 0)]
    shelf.restore(0, [], {2: 1}, found)
    assert shelf.ready() == [group(0), group(1, 1)]
    assert set(shelf.thrown) == {group(0, whole=False), group(1, 0), group(2, 0)}
    assert shelf.num_bytes == 20


def test_a_group_that_became_of_no_use_on_its_way_to_the_journal_is_thrown_away() -> None:
    shelf = restored()
    for position in (0, 1):
        assert shelf.put(group(position, whole=False)) == "kept"
    shelf.again({0: 1})
    shelf.done(0, [1])
    assert shelf.settle(group(0, whole=False)) == "stale"
    assert shelf.settle(group(1, whole=False)) == "duplicate"
    assert len(shelf.thrown) == 2 and shelf.num_bytes == 0


KINDS = st.sampled_from(["put", "settle", "take", "done", "again", "kill"])
CALLS = st.lists(st.tuples(KINDS, st.integers(0, 5)), max_size=80)


@settings(max_examples=300, deadline=None)
@given(CALLS)
def test_over_any_schedule_no_position_is_trained_twice_and_the_bytes_add_up(calls: list[tuple[str, int]]) -> None:
    shelf, durable, pending, trained = restored(10**6), list[Origin](), list[Origin](), list[int]()
    done, attempts = set[int](), dict[int, int]()
    for call, position in calls:
        if call == "put" and shelf.put(one := group(position, attempts.get(position, 0), position % 2 == 0)) == "kept":
            pending.append(one)
        elif call == "settle" and pending:
            durable.append(one := pending.pop())
            shelf.settle(one)
        elif call == "take":
            shelf.take([one.key for one in shelf.ready() if one.position == position])
        elif call == "done":
            taken = [one.position for one, state in shelf.groups() if state == "taken"]
            assert not set(taken) & set(trained)
            trained += taken
            done |= set(taken)
            shelf.done(0, taken)
        elif call == "again" and position not in done:
            attempts[position] = attempts.get(position, 0) + 1
            shelf.again({position: attempts[position]})
        elif call == "kill":
            shelf, pending = Shelf(10**6), []
            shelf.restore(0, done, attempts, durable)
        groups = [one for one, _ in shelf.groups()] + [one for one in pending if shelf.put(one) == "pending"]
        assert shelf.num_bytes == sum(one.num_bytes for one in groups)
