"""Leases: who plays which position. Driven by hand; tests/stages/rl/test_exactly_once.py drives them at random."""

import time
from typing import Any, Literal

import pytest

from data.transport.endpoint import Endpoint
from stages.rl.coordinator.leases import Leases
from stages.rl.messages import Advance, Ended, Inventory, Lease, Shelved, Source

SOURCE = Source(version=0, digest="", num_bytes=0, endpoint=Endpoint("127.0.0.1", 1, ""))


def _advance(window: int = 8, cursor: int = 0, version: int = 0, **more: Any) -> Advance:
    return Advance(version=version, source=SOURCE, window=window, cursor=cursor, **more)


def _has(**states: Literal["partial", "ready", "taken"]) -> Inventory:
    """p3="ready" and so on."""
    shelved = tuple(Shelved(position=int(name[1:]), attempt=0, state=state) for name, state in states.items())
    return Inventory(start="s", shelved=shelved, num_bytes=0, room=1)


def _leases(advance: Advance | None = None, inventory: Inventory | None = None, **more: Any) -> Leases:
    leases = Leases("c", shards=1, lease_seconds=10.0, max_attempts=3, **more)
    leases.advance(advance or _advance())
    leases.inventory(0, inventory or _has(), asked=0.0)
    return leases


def _positions(leases: tuple[Lease, ...]) -> list[int]:
    return [lease.position for lease in leases]


def _store(leases: Leases, member: str, lease: Lease, now: float) -> None:
    leases.ended(member, Ended(id=lease.id, how="stored"), now)


def test_nothing_is_given_out_before_the_learner_and_every_shard_have_spoken() -> None:
    leases = Leases("c", shards=2, lease_seconds=10.0, max_attempts=3)
    assert leases.grant("a", 1, 0.0) == ()
    leases.advance(_advance())
    leases.inventory(1, _has(), asked=0.0)
    assert leases.grant("a", 1, 0.0) == ()
    leases.inventory(0, _has(), asked=0.0)
    assert _positions(leases.grant("a", 1, 0.0)) == [0]


def test_no_two_members_have_one_position_and_the_window_bounds_all_of_them() -> None:
    leases = _leases(_advance(window=5))
    assert _positions(leases.grant("a", 3, 0.0)) == [0, 1, 2]
    assert _positions(leases.grant("b", 3, 0.0)) == [3, 4]
    assert leases.grant("c", 1, 0.0) == ()


def test_what_is_done_with_or_in_the_store_is_not_given_out() -> None:
    leases = _leases(_advance(window=9, cursor=2, ahead=(3, 6)), _has(p2="ready", p5="taken"))
    leases.expire(0.0)
    assert _positions(leases.grant("a", 9, 0.0)) == [4, 7, 8, 9, 10, 11, 12]


def test_the_window_holds_between_a_put_and_the_next_inventory() -> None:
    leases = _leases(_advance(window=2))
    first, second = leases.grant("a", 2, 1.0)
    _store(leases, "a", first, 2.0)
    leases.inventory(0, _has(), asked=1.5)  # asked before the put
    assert leases.room == 0
    leases.inventory(0, _has(p0="ready"), asked=2.5)
    assert leases.room == 0
    leases.inventory(0, _has(p0="taken"), asked=3.0)
    leases.advance(_advance(window=2, cursor=1, version=1))
    assert leases.room == 1 and leases.held("a") == (1,) and second.position == 1


def test_the_window_is_the_same_after_any_number_of_replacements() -> None:
    """R8: what is out is worked out from what is there; a recovery adds no room."""
    held = _leases(_advance(window=4)).grant("a", 2, 0.0)
    for start in ("d", "e", "f"):
        leases = Leases(start, shards=1, lease_seconds=10.0, max_attempts=3, expected={"a"}, grace=3.0)
        leases.adopt("a", held, 0.0)
        leases.advance(_advance(window=4))
        leases.inventory(0, _has(p3="ready"), asked=0.0)
        assert leases.room == 1
        assert leases.renew("a", [lease.id for lease in held], 0.0) == ()


def test_what_a_living_member_holds_is_not_given_out_by_the_next_coordinator() -> None:
    held = _leases().grant("a", 2, 0.0)
    leases = _leases(expected={"a", "b"}, grace=3.0)
    leases.adopt("b", (), 0.5)
    assert leases.grant("b", 1, 0.5) == ()  # a has not spoken yet
    leases.adopt("a", held, 1.0)
    leases.expire(1.0)
    assert _positions(leases.grant("b", 2, 1.0)) == [2, 3]


def test_the_next_coordinator_waits_for_the_dead_only_so_long() -> None:
    leases = _leases(_advance(window=3), _has(p2="ready"), expected={"dead"}, grace=3.0)
    leases.expire(2.9)
    assert leases.grant("b", 1, 2.9) == ()
    leases.expire(3.0)
    assert _positions(leases.grant("b", 2, 3.0)) == [0, 1]


def test_a_member_that_comes_late_loses_what_others_were_given() -> None:
    held = _leases().grant("a", 2, 0.0)
    leases = _leases()
    leases.grant("b", 1, 0.0)
    leases.adopt("a", held, 1.0)
    assert leases.renew("a", [lease.id for lease in held], 1.0) == (held[0].id,)


def test_a_member_that_comes_late_may_bring_more_than_the_window_and_then_nothing_new_is_given_out() -> None:
    first = _leases(_advance(window=2), set_aside={0: "tried 3 times"})
    held = first.grant("a", 2, 0.0)
    assert _positions(held) == [1, 2]
    after = _leases(_advance(window=2))  # which knows neither a nor what was set aside
    mine = after.grant("b", 2, 0.0)
    assert _positions(mine) == [0, 1]
    after.adopt("a", held, 1.0)
    assert after.renew("a", [lease.id for lease in held], 1.0) == (held[0].id,)
    assert after.out == 3 and after.grant("b", 1, 1.0) == ()
    _store(after, "b", mine[0], 2.0)
    after.inventory(0, _has(p0="ready"), asked=3.0)
    after.advance(_advance(window=2, cursor=1))
    assert after.out == 2 and after.grant("b", 1, 4.0) == ()
    after.advance(_advance(window=2, cursor=2))
    assert after.out == 1 and _positions(after.grant("b", 2, 5.0)) == [3]


def test_leases_expire_and_are_given_out_again() -> None:
    """H5."""
    leases = _leases(_advance(window=2))
    leases.grant("a", 2, 0.0)
    leases.expire(10.0)
    assert leases.grant("b", 2, 10.0) == ()
    assert leases.expire(10.1) == ("a",)
    assert _positions(leases.grant("b", 2, 10.1)) == [0, 1]
    assert leases.renew("a", ["c-1", "c-2"], 11.0) == ("c-1", "c-2")


def test_a_prompt_that_is_lost_so_often_with_its_actor_is_set_aside() -> None:
    """R4."""
    leases = _leases(_advance(window=1))
    for actor in ("a", "b", "c"):
        assert _positions(leases.grant(actor, 1, 0.0)) == [0]
        leases.lost(actor, "killed")
    assert leases.waiting.set_aside[0] == "tried 3 times; the last time lost with c: killed"
    assert _positions(leases.grant("d", 1, 0.0)) == [1]
    leases.advance(_advance(window=1, cursor=1))
    assert leases.waiting.set_aside == {} and leases.waiting.losses == {}


def test_failures_losses_and_what_learners_threw_away_count_together() -> None:
    """R4."""
    leases = _leases(_advance(window=1, attempts={0: 1}))
    (lease,) = leases.grant("a", 1, 0.0)
    assert lease.attempt == 1
    leases.ended("a", Ended(id=lease.id, how="failed", why="no answer"), 0.0)
    assert leases.waiting.set_aside == {}
    leases.grant("b", 1, 0.0)
    leases.lost("b", "killed")
    assert list(leases.waiting.set_aside) == [0]


def test_leaving_politely_costs_no_attempt() -> None:
    leases = _leases(_advance(window=1))
    for number in range(9):
        assert _positions(leases.grant(f"a{number}", 1, 0.0)) == [0]
        leases.leave(f"a{number}")
    assert leases.waiting.losses == {} and leases.waiting.set_aside == {}


def test_an_answer_that_did_not_arrive_costs_nothing() -> None:
    leases = _leases(_advance(window=2))
    leases.grant("a", 2, 0.0)
    assert leases.renew("a", [], 1.0) == ()
    assert _positions(leases.grant("a", 2, 1.0)) == [0, 1]
    assert leases.waiting.losses == {}


def test_a_half_played_group_is_given_to_another_and_needs_no_room() -> None:
    leases = _leases(_advance(window=1))
    (lease,) = leases.grant("a", 1, 0.0)
    leases.ended("a", Ended(id=lease.id, how="handed back"), 1.0)
    (again,) = leases.grant("b", 1, 1.0)
    assert again.partial and again.position == 0 and again.id != lease.id
    leases.inventory(0, _has(p0="partial"), asked=2.0)
    leases.lost("b", "killed")
    (third,) = leases.grant("c", 1, 2.0)
    assert third.partial and leases.room == 0


def test_samples_that_were_too_old_are_played_again_with_the_next_attempt() -> None:
    leases = _leases(_advance(window=8), _has(p0="ready", p1="ready"))
    leases.inventory(0, _has(p1="ready"), asked=1.0)
    assert 0 not in _positions(leases.grant("a", 1, 1.0))  # the learner has not said what became of it
    leases.advance(_advance(window=8, version=1, attempts={0: 1}))
    (lease,) = leases.grant("a", 1, 1.0)
    assert (lease.position, lease.attempt) == (0, 1)


@pytest.mark.parametrize(("drop", "expected"), [(False, [0, 1, 2, 4]), (True, [1, 2, 0, 4])])
def test_requeued_prompts_come_back_before_all_that_wait_and_dropped_ones_behind_them(
    drop: bool, expected: list[int]
) -> None:
    leases = _leases(_advance(window=8), _has(p0="ready", p3="ready"), drop=drop)
    leases.expire(0.0)
    leases.advance(_advance(window=8, version=1, attempts={0: 1}))
    leases.inventory(0, _has(p3="ready"), asked=1.0)
    assert _positions(leases.grant("a", 4, 1.0)) == expected


@pytest.mark.parametrize("known", [True, False])
def test_what_was_thrown_away_is_given_out_as_soon_as_the_learner_says_so_whatever_its_shard_has_said(
    known: bool,
) -> None:
    leases = _leases(_advance(window=2))
    first, _ = leases.grant("a", 2, 0.0)
    _store(leases, "a", first, 1.0)
    if known:
        leases.inventory(0, _has(p0="ready"), asked=2.0)
    leases.advance(_advance(window=2, version=3, attempts={0: 1}))
    leases.inventory(0, _has(p0="ready"), asked=2.0)  # before it heard
    (again,) = leases.grant("a", 2, 3.0)
    assert (again.position, again.attempt, again.partial) == (0, 1, False) and leases.room == 0
    _store(leases, "a", again, 4.0)
    leases.inventory(0, _has(), asked=3.5)
    leases.advance(_advance(window=2, version=4, attempts={0: 1}))
    assert leases.room == 0 and leases.grant("a", 1, 5.0) == ()


def test_a_group_that_its_shard_lost_is_played_again() -> None:
    leases = _leases(_advance(window=2), _has(p0="ready"))
    leases.inventory(0, _has(), asked=1.0)
    leases.expire(11.1)
    assert _positions(leases.grant("a", 1, 11.1)) == [0]


def test_a_learner_that_went_back_to_its_checkpoint_is_believed() -> None:
    leases = _leases(_advance(window=4, cursor=6, version=6))
    leases.advance(_advance(window=4, cursor=2, version=2))
    leases.inventory(0, _has(p2="ready", p3="ready", p4="ready"), asked=1.0)
    leases.expire(1.0)
    assert _positions(leases.grant("a", 4, 1.0)) == [5]


def test_a_lease_of_what_is_done_with_is_lost() -> None:
    leases = _leases()
    (lease,) = leases.grant("a", 1, 0.0)
    leases.advance(_advance(cursor=1))
    assert leases.renew("a", [lease.id], 1.0) == (lease.id,)
    (other,) = leases.grant("a", 1, 0.0)
    leases.inventory(0, _has(p1="ready"), asked=2.0)
    assert other.position == 1 and leases.renew("a", [other.id], 2.0) == (other.id,)


def test_what_is_half_played_and_too_old_is_played_anew_in_the_room_that_it_has() -> None:
    leases = _leases(_advance(window=1, version=3), max_staleness=2)
    begun = Shelved(position=0, attempt=0, state="partial", oldest=1)
    leases.inventory(0, Inventory(start="s", shelved=(begun,), num_bytes=0, room=1), asked=1.0)
    leases.expire(1.0)
    (lease,) = leases.grant("a", 1, 1.0)
    assert lease.partial and leases.room == 0
    leases.leave("a")
    leases.advance(_advance(window=1, version=4))
    (lease,) = leases.grant("b", 2, 2.0)
    assert lease.position == 0 and not lease.partial and leases.room == 0


def test_half_played_groups_go_on_though_prompts_that_need_room_come_before_them() -> None:
    leases = _leases(_advance(window=2), _has(p2="partial", p3="partial"))
    leases.expire(0.0)
    assert _positions(leases.grant("a", 1, 0.0)) == [2]
    assert _positions(leases.grant("a", 9, 0.0)) == [3]
    leases.advance(_advance(window=3))
    assert _positions(leases.grant("a", 9, 0.0)) == [0]


def test_a_position_that_is_absurdly_high_costs_neither_time_nor_the_prompts_before_it() -> None:
    leases = _leases(_advance(window=8))
    leases.adopt("a", [Lease(id="x", position=10**15, attempt=0)], 0.0)
    leases.expire(0.0)
    assert _positions(leases.grant("b", 9, 0.0)) == list(range(7))


def test_a_call_costs_the_same_whatever_the_size_of_the_window() -> None:
    seconds = list[float]()
    for window in (64, 16384):
        ready: dict[str, Any] = {f"p{position}": "ready" for position in range(window)}
        leases = _leases(_advance(window=window), _has(**ready))
        began = time.process_time()
        for _ in range(2000):
            assert leases.grant("a", 4, 1.0) == () and leases.renew("a", [], 1.0) == ()
        seconds.append(time.process_time() - began)
    assert seconds[1] < 10 * seconds[0], seconds  # by the size, it would be 256 times as much


def test_attempts_that_were_no_fault_of_a_prompt_are_none_of_its_tries() -> None:
    leases = _leases(_advance(attempts={0: 3}, excused={0: 2}))
    for now in (0.0, 1.0):
        (lease,) = leases.grant("a", 1, now)
        assert (lease.position, lease.attempt) == (0, 3)
        leases.lost("a", "killed")
    assert "tried 3 times" in leases.waiting.set_aside[0]
