"""Which groups a batch takes, what becomes of those that are too old, and what a state says of positions."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.rl.choice import OVERDUE, Choice, Ready, choose, not_drawn, overdue, staleness, thrown_away
from stages.rl.config import AsynchronousConfig
from stages.rl.prompts import row_at
from stages.rl.state import MAX_FAILURES, State

PROMPTS, WINDOW = 4, 12


def ready(position: int, oldest: int = 0, attempt: int = 0) -> Ready:
    return Ready(position, attempt, tokens=10, samples=4, oldest=oldest, shard=position % 2)


def test_the_lowest_positions_are_taken_in_whatever_order_they_are_offered() -> None:
    found = choose([ready(9), ready(2), ready(5)], State(), 2, frozenset(), AsynchronousConfig())
    assert [one.position for one in found.taken] == [2, 5]
    assert not found.again and not found.aside and not found.stale


def test_what_is_done_with_chosen_or_of_an_attempt_that_was_thrown_away_is_passed_over() -> None:
    state = State(cursor=3, ahead=(5,), attempts={4: 1})
    there = [ready(position) for position in range(8)]
    found = choose(there, state, 9, frozenset({6}), AsynchronousConfig())
    assert [one.position for one in found.taken] == [3, 7]
    assert [one.position for one in choose([ready(4, attempt=1)], state, 9, frozenset(), AsynchronousConfig()).taken]


@pytest.mark.parametrize("stale", ["requeue", "drop"])
def test_what_is_too_old_is_played_again_until_it_was_tried_too_often(stale: str) -> None:
    config = AsynchronousConfig.model_validate({"max_staleness": 2, "max_attempts": 3, "stale": stale})
    state = State(policy_version=9)
    found = choose([ready(1, 6), ready(2, 6, attempt=2), ready(3, 7)], state, 9, frozenset(), config)
    assert [one.position for one in found.taken] == [3]
    assert found.again == {1: 1} and found.aside == {2} and found.stale == 2
    after = state.done_with((), found.aside, found.again)
    assert after.ahead == (2,) and after.attempts == {1: 1} and after.positions_set_aside == 1


def test_kept_is_what_is_too_old_when_the_algorithm_corrects_for_it() -> None:
    config = AsynchronousConfig(max_staleness=1, stale="keep")
    found = choose([ready(1, 0)], State(policy_version=9), 9, frozenset(), config)
    assert [one.position for one in found.taken] == [1] and found.stale == 0


def test_a_version_that_a_kill_has_taken_back_is_as_far_away_as_an_old_one_and_silence_is_never_old() -> None:
    assert staleness(oldest=7, version=5) == 2 and staleness(oldest=3, version=5) == 2
    assert staleness(oldest=-1, version=5) == 0


def test_after_a_kill_all_is_trained_again_from_the_journal_and_nothing_is_played_again() -> None:
    """The learner falls back from version 10 to 5; the version that has learned from a batch has also begun it."""
    config, state = AsynchronousConfig(max_staleness=2), State(policy_version=5, cursor=20)
    journal = [ready(20 + place, 5 + place // PROMPTS) for place in range(5 * PROMPTS)]
    for _ in range(5):
        found = choose(journal, state, PROMPTS, frozenset(), config)
        assert not found.again and not found.aside and len(found.taken) == PROMPTS
        assert all(staleness(one.oldest, state.policy_version) == 0 for one in found.taken)
        state = state.done_with([one.position for one in found.taken], (), {})
        state = state.after_step(state.cursor, 0, 0.0, ())


def test_what_a_lost_version_has_played_is_thrown_away_when_its_turn_comes_and_it_is_still_too_far_away() -> None:
    config, state = AsynchronousConfig(max_staleness=2), State(policy_version=5)
    found = choose([ready(0, 9), ready(1, 6), ready(2, 9)], state, 1, frozenset(), config)
    assert found.again == {0: 1} and [one.position for one in found.taken] == [1] and found.stale == 1


def test_what_was_refused_for_no_fault_of_the_prompts_costs_them_no_attempt() -> None:
    config = AsynchronousConfig(max_staleness=2, max_attempts=2)
    state = State(policy_version=9).refused({1: 1}).refused({1: 2})
    assert state.attempts == {1: 2} and state.excused == {1: 2}
    first = choose([ready(1, 0, attempt=2)], state, 1, frozenset(), config)
    assert first.again == {1: 3}
    state = State.from_json(json.loads(json.dumps(state.done_with((), (), first.again).to_json())))
    assert choose([ready(1, 0, attempt=3)], state, 1, frozenset(), config).aside == {1}
    assert state.done_with([1], (), {}).excused == {}


def test_what_two_threads_have_made_of_one_state_comes_together() -> None:
    before = State(cursor=3, attempts={4: 1})
    beside = before.done_with((), {3, 7}, {4: 2, 8: 1})
    state = before.done_with([5, 6], (), {4: 1}).after_step(3, 10, 1.0, ()).joined(beside)
    assert state.cursor == 4 and state.ahead == (5, 6, 7) and state.attempts == {4: 2, 8: 1}
    assert state.positions_set_aside == 2 and state.policy_version == 1 and state.joined(beside) == state


def test_a_position_that_nobody_ends_is_played_again_ever_later_and_then_set_aside() -> None:
    config, state, seen = AsynchronousConfig(max_attempts=3), State(), list[tuple[int, dict[int, int]]]()
    for newest in range(1, 400):  # position 0 hangs; all others are trained, one after the other
        state = state.done_with([newest], (), {})
        again, aside = overdue(state, WINDOW, config)
        if again or aside:
            seen.append((newest, again))
        state = state.done_with((), aside, again)
    lag = OVERDUE * WINDOW
    assert seen == [(lag + 1, {0: 1}), (2 * lag + 1, {0: 2}), (3 * lag + 1, {})]
    assert state.positions_set_aside == 1 and state.cursor == 400 and state.ahead == () and state.attempts == {}


def test_ahead_is_bounded_by_the_attempts_of_a_position_that_hangs() -> None:
    config, state, most = AsynchronousConfig(), State(), 0
    for newest in range(1, 2000):
        if newest % 300:  # every 300th position hangs, whoever plays it
            state = state.done_with([newest], (), {})
        again, aside = overdue(state, WINDOW, config)
        state = state.done_with((), aside, again)
        most = max(most, len(state.ahead))
    assert most <= OVERDUE * WINDOW * config.max_attempts + 1
    assert len(json.dumps(state.to_json())) < 4 * most * 2 + 1000


def test_positions_of_a_prompt_that_cannot_be_graded_are_set_aside_before_they_are_played() -> None:
    ids = pa.chunked_array([["a", "b", "c"]])
    state = State(cursor=2, ahead=(4,), failures={"b": MAX_FAILURES, "c": MAX_FAILURES - 1})
    found = not_drawn(5, ids, state, window=6)
    assert {p for p in range(2, 16) if ids[row_at(5, p, 3)].as_py() == "b"} <= found
    assert {ids[row_at(5, p, 3)].as_py() for p in found} == {"b"} and max(found) < 2 + 3 * 6 + 6
    assert not_drawn(5, ids, replace(state, failures={}), window=6) == set()


def test_looks_set_aside_no_more_of_a_prompt_that_cannot_be_graded_than_lies_before_what_is_played_next() -> None:
    ids, config = pa.chunked_array([["a", "b"]]), AsynchronousConfig(max_attempts=2)
    state, nothing = State(failures={"a": MAX_FAILURES}), Choice([], {}, set(), 0)
    looks = [state := thrown_away(state, nothing, set(), set(), 5, ids, WINDOW, config) for _ in range(100)]
    assert looks[1:] == looks[:-1]
    assert state.positions_set_aside <= 2 * WINDOW + 1 and not state.attempts


def test_when_all_prompts_were_set_aside_the_run_ends_and_says_so() -> None:
    state = State(failures={"a": MAX_FAILURES, "b": MAX_FAILURES})
    with pytest.raises(ValueError, match="all 2 prompts were set aside"):
        not_drawn(5, pa.chunked_array([["a", "b"]]), state, window=6)


moves = st.lists(
    st.tuples(
        st.lists(st.integers(0, 30), max_size=4),
        st.lists(st.integers(0, 30), max_size=2),
        st.dictionaries(st.integers(0, 30), st.integers(1, 3), max_size=2),
    )
)


@given(moves)
def test_a_position_that_is_done_with_stays_so_and_is_counted_once(
    moves: list[tuple[list[int], list[int], dict[int, int]]],
) -> None:
    state, done, given_up = State(), set[int](), set[int]()
    for trained, aside, attempts in moves:
        given_up |= set(aside) - done - given_up
        done |= {*trained, *aside}
        state = State.from_json(json.loads(json.dumps(state.done_with(trained, aside, attempts).to_json())))
        assert {p for p in range(40) if state.is_done(p)} == done
        assert not state.is_done(state.cursor) and state.ahead == tuple(sorted(p for p in done if p > state.cursor))
        assert done.isdisjoint(state.attempts)
        assert state.positions_set_aside == len(given_up)
    assert state.done_with(done, done, dict.fromkeys(done, 1)) == state


@given(st.sets(st.integers(0, 30)), st.integers(1, 5), st.dictionaries(st.integers(0, 30), st.integers(0, 9)))
def test_no_offer_is_both_taken_and_thrown_away(positions: set[int], missing: int, versions: dict[int, int]) -> None:
    there = [ready(position, versions.get(position, 9)) for position in positions]
    found = choose(there, State(policy_version=9), missing, frozenset(), AsynchronousConfig())
    taken = {one.position for one in found.taken}
    assert len(taken) <= missing and taken.isdisjoint(found.again) and taken.isdisjoint(found.aside)
    assert found.stale == len(found.again) + len(found.aside)
