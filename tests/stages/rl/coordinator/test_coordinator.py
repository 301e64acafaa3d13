"""What the coordinator answers to members and learners."""

import json
import stat
from pathlib import Path
from typing import Any

from data.transport.endpoint import Endpoint
from stages.rl.config import AsynchronousConfig
from stages.rl.coordinator.coordinator import GRACE_SECONDS, LONGEST_SECONDS, Coordinator
from stages.rl.coordinator.table import NAME, Table, read_table, write_table
from stages.rl.messages import Advance, Ended, Inventory, Join, Orders, Rates, Renewal, Score, Shelved, Source

CONFIG = AsynchronousConfig(lease_seconds=10.0, max_attempts=2)
ROOT = Endpoint("10.0.0.1", 1, "t")
SOURCE = Source(version=3, digest="d", num_bytes=1, endpoint=ROOT)


def _coordinator(before: Table | None = None, now: float = 0.0, start: str = "c", window: int = 8) -> Coordinator:
    coordinator = Coordinator(CONFIG, 1, "home", start, before or Table(), now)
    coordinator.advance(Advance(version=3, source=SOURCE, window=window, cursor=0), now)
    coordinator.inventory(0, Inventory(start="s", shelved=(), num_bytes=0, room=1), now)
    return coordinator


def _join(coordinator: Coordinator, name: str, now: float = 0.0, **more: Any) -> None:
    fields: dict[str, Any] = {"supernode": "home", "samples_at_once": 4, **more}
    join = Join(member=name, node=f"node-{name}", **fields)
    coordinator.join(join, now)


def _renew(coordinator: Coordinator, name: str, now: float, *holding: Orders, **more: Any) -> Orders:
    ids = tuple(lease.id for orders in holding for lease in orders.leases)
    return coordinator.renew(Renewal(member=name, holding=ids, **more), now)


def test_a_member_is_told_leases_source_and_when_to_call_again() -> None:
    coordinator = _coordinator()
    _join(coordinator, "a")
    orders = _renew(coordinator, "a", 0.0, want=2)
    assert len(orders.leases) == 2 and orders.source == SOURCE
    assert not orders.stranger and not orders.relay and not orders.leave


def test_the_window_that_opens_with_a_step_is_given_out_at_once() -> None:
    coordinator = _coordinator(window=4)
    _join(coordinator, "a")
    orders = _renew(coordinator, "a", 0.0, want=4)
    ended = tuple(Ended(id=lease.id, how="stored") for lease in orders.leases)
    assert not _renew(coordinator, "a", 0.1, ended=ended, want=4).leases
    coordinator.sweep(0.2)  # nothing is out and nothing may be
    coordinator.advance(Advance(version=4, source=SOURCE, window=4, cursor=4), 0.3)
    assert [lease.position for lease in _renew(coordinator, "a", 0.4, want=4).leases] == [4, 5, 6, 7]


def test_one_member_of_another_supernode_relays_and_the_others_get_weights_from_it() -> None:
    coordinator = _coordinator()
    _join(coordinator, "a", supernode="far")
    _join(coordinator, "b", supernode="far")
    relay = Endpoint("10.1.0.1", 2, "u")
    assert _renew(coordinator, "a", 0.0).relay and not _renew(coordinator, "b", 0.0).relay
    _renew(coordinator, "a", 1.0, relay=relay)
    told = _renew(coordinator, "b", 1.0).source
    assert told is not None and told.endpoint == relay


def test_a_silent_member_is_gone_with_a_reason_and_a_stranger_when_it_comes_back() -> None:
    coordinator = _coordinator()
    _join(coordinator, "a")
    orders = _renew(coordinator, "a", 0.0, want=2)
    _join(coordinator, "b", 9.0)
    coordinator.sweep(10.1)
    (gone,) = coordinator.table(10.1).gone
    assert (gone.name, gone.gone, gone.why) == ("a", 10.1, "silent for 10 s")
    assert len(_renew(coordinator, "b", 10.1, want=2).leases) == 2
    assert _renew(coordinator, "a", 11.0, orders).stranger
    _join(coordinator, "a", 11.0)
    back = _renew(coordinator, "a", 11.0, orders, leases=orders.leases)
    assert set(back.lost) == {lease.id for lease in orders.leases}


def test_a_prompt_that_takes_its_actors_with_it_is_set_aside_and_the_learner_is_told() -> None:
    """R4."""
    coordinator = _coordinator(window=1)
    for number in range(2):
        _join(coordinator, f"a{number}", 20.0 * number)
        assert _renew(coordinator, f"a{number}", 20.0 * number, want=1).leases[0].position == 0
        coordinator.sweep(20.0 * number + 10.1)
    status = coordinator.status(40.0)
    assert list(status.set_aside) == [0] and "lost with a1" in status.set_aside[0]


def test_why_positions_were_set_aside_can_be_read_after_the_learner_knows_and_after_a_restart() -> None:
    coordinator = _coordinator(window=1)
    for number in range(2):
        _join(coordinator, f"a{number}")
        orders = _renew(coordinator, f"a{number}", 0.0, want=1)
        ended = (Ended(id=orders.leases[0].id, how="failed", why="no answer"),)
        _renew(coordinator, f"a{number}", 0.0, ended=ended)
    aside = Advance(version=4, source=SOURCE, window=1, cursor=1, positions_set_aside=1)
    status, table = coordinator.advance(aside, 1.0), coordinator.table(1.0)
    assert not status.set_aside and status.reasons == table.reasons
    assert not table.set_aside and table.positions_set_aside == 1
    assert table.reasons == {0: "tried 2 times; the last time failed: no answer"}
    after = Coordinator(CONFIG, 1, "home", "d", table, 2.0)
    after.advance(aside, 2.0)
    assert after.table(2.0).reasons == table.reasons
    after.advance(Advance(version=3, source=SOURCE, window=1, cursor=0), 3.0)  # back at a checkpoint
    assert after.table(3.0).reasons == {} and after.table(3.0).positions_set_aside == 0


def test_an_actor_that_was_started_anew_under_its_name_has_lost_its_prompts() -> None:
    coordinator = _coordinator(window=1)
    for _ in range(2):
        _join(coordinator, "a")
        assert _renew(coordinator, "a", 0.0, want=1).leases[0].position == 0
    _join(coordinator, "a")
    assert list(coordinator.status(0.0).set_aside) == [0]
    assert [gone.why for gone in coordinator.table(0.0).gone] == ["started anew"] * 2


def test_a_join_that_is_said_twice_is_one() -> None:
    coordinator = _coordinator()
    _join(coordinator, "a")
    _join(coordinator, "a")
    assert len(coordinator.table(0.0).members) == 1 and coordinator.table(0.0).gone == ()


def test_joining_again_because_an_answer_was_lost_costs_no_attempt_whatever_it_holds() -> None:
    coordinator = _coordinator()
    _join(coordinator, "a", start="1")
    held = _renew(coordinator, "a", 0.0, want=2)
    for now in (1.0, 2.0, 3.0):
        _join(coordinator, "a", now, start="1")
        again = _renew(coordinator, "a", now, held, leases=held.leases)
        assert not again.stranger and not again.lost
    assert not coordinator.leases.waiting.losses and not coordinator.status(3.0).set_aside
    assert [lease.position for lease in held.leases] == list(coordinator.leases.held("a"))


def test_leaving_costs_the_prompts_no_attempt_and_its_reason_is_shown() -> None:
    coordinator = _coordinator(window=1)
    for number in range(5):
        _join(coordinator, f"a{number}")
        orders = _renew(coordinator, f"a{number}", 0.0, want=1)
        assert orders.leases[0].position == 0
        _renew(coordinator, f"a{number}", 0.0, orders, leaving="preempted")
    assert coordinator.status(0.0).set_aside == {}
    assert {state.why for state in coordinator.table(0.0).gone} == {"preempted"}


def test_trouble_and_scores_reach_the_learner_also_of_those_that_are_gone() -> None:
    coordinator = _coordinator()
    _join(coordinator, "a")
    _renew(coordinator, "a", 0.0, trouble="ParityError: off by 3")
    _renew(coordinator, "a", 0.5, trouble="ParityError: off by 3", leaving="it failed")
    coordinator.score(Score(version=2, prompts=8, success=0.5, seconds=1.0), 1.0)
    status = coordinator.status(1.0)
    assert status.troubles == {"a": "ParityError: off by 3"}
    assert [score.success for score in status.scores] == [0.5]


def test_trouble_of_one_that_has_left_reaches_the_learner_after_a_replacement_and_no_later_start_of_learners() -> None:
    first = Coordinator(CONFIG, 1, "home", "c", Table(), 0.0, "one")
    for name in ("a", "b"):
        _join(first, name)
    _renew(first, "a", 0.0, trouble="ParityError: off by 3", leaving="it failed")
    _renew(first, "b", 0.0, trouble="no source")
    second = Coordinator(CONFIG, 1, "home", "d", first.table(1.0), 5.0, "one")
    third = Coordinator(CONFIG, 1, "home", "e", second.table(6.0), 7.0, "one")
    assert third.status(8.0).troubles == {"a": "ParityError: off by 3", "b": "no source"}
    later = Coordinator(CONFIG, 1, "home", "f", third.table(8.0), 9.0, "two")
    later.advance(Advance(version=3, source=SOURCE, window=8, cursor=0), 9.0)
    later.inventory(0, Inventory(start="s", shelved=(), num_bytes=0, room=1), 9.0)
    assert later.status(9.0).troubles == {}
    later.sweep(30.0)  # b was not heard of
    assert later.status(30.0).troubles == {} and len(later.table(30.0).gone) == 2


def test_prompts_that_take_their_actor_and_the_coordinator_with_them_are_set_aside_in_the_end() -> None:
    table = Table()
    for number in range(2):
        now = 100.0 * number
        coordinator = _coordinator(table, now, f"c{number}", window=1)
        coordinator.sweep(now + 20)
        _join(coordinator, f"a{number}", now + 20)
        (lease,) = _renew(coordinator, f"a{number}", now + 20, want=1).leases
        assert lease.position == 0
        table = coordinator.table(now + 21)
    after = _coordinator(table, 200.0, "d", window=1)
    after.sweep(220.0)
    assert after.status(220.0).set_aside == {0: "tried 2 times; the last time lost with a1 and the coordinator"}


def test_what_was_stored_in_time_is_no_loss_though_its_actor_and_the_coordinator_are_gone() -> None:
    first = _coordinator(window=1)
    _join(first, "a")
    _renew(first, "a", 0.0, want=1)
    after = _coordinator(first.table(0.0), 5.0, "d", window=1)
    stored = (Shelved(position=0, attempt=0, state="ready"),)
    after.inventory(0, Inventory(start="s", shelved=stored, num_bytes=0, room=1), 6.0)
    after.sweep(20.0)
    assert after.table(20.0).losses == {}


def test_many_members_call_less_often_but_several_times_in_a_lease_and_before_a_new_coordinator_stops_waiting() -> None:
    config = AsynchronousConfig(lease_seconds=30.0)
    coordinator = Coordinator(config, 1, "home", "c", Table(), 0.0)
    seconds = list[float]()
    for number in range(2048):
        _join(coordinator, f"a{number}")
        seconds.append(_renew(coordinator, f"a{number}", 0.0).seconds)
    assert (seconds[15], seconds[299], seconds[-1]) == (1.0, 1.5, LONGEST_SECONDS)
    assert LONGEST_SECONDS < GRACE_SECONDS
    short = _coordinator()
    _join(short, "a")
    assert _renew(short, "a", 0.0).seconds == 1.0


def test_rates_are_summed_and_shown_for_each_actor() -> None:
    coordinator = _coordinator()
    for name in ("a", "b"):
        _join(coordinator, name)
        for second in range(3):
            rates = Rates(seconds=1.0, tokens=100, episodes=4, busy=0.5, version=3, device=0.7)
            _renew(coordinator, name, float(second), rates=rates)
    _join(coordinator, "e", role="evaluator")
    status = coordinator.status(3.0)
    assert status.actors == 2 and round(status.tokens_per_second) == 200 and round(status.episodes_per_second) == 8
    assert round(status.utilisation, 3) == 0.5
    assert [(one.name, one.device, one.version) for one in status.members[:2]] == [("a", 0.7, 3), ("b", 0.7, 3)]


def test_an_evaluator_gets_weights_and_no_prompts() -> None:
    coordinator = _coordinator()
    _join(coordinator, "e", role="evaluator")
    orders = _renew(coordinator, "e", 0.0, want=3)
    assert orders.leases == () and orders.source == SOURCE


def test_when_the_run_ends_everybody_is_told() -> None:
    coordinator = _coordinator()
    _join(coordinator, "a")
    coordinator.end("the run is done")
    orders = _renew(coordinator, "a", 0.0, want=1)
    assert orders.leave == "the run is done" and orders.leases == ()
    assert _renew(coordinator, "nobody", 0.0).leave == "the run is done"


def test_the_table_survives_the_coordinator(tmp_path: Path) -> None:
    coordinator = _coordinator(window=2)
    for name in ("a", "b", "c"):
        _join(coordinator, name, 5.0)
    orders = _renew(coordinator, "a", 5.0, want=1)
    _renew(coordinator, "b", 5.0, want=1)
    _renew(coordinator, "c", 5.0, leaving="cancelled")
    for second in (10.0, 15.0):
        _renew(coordinator, "a", second, orders)
    coordinator.sweep(15.1)
    write_table(tmp_path, coordinator.table(15.1))
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600

    after = _coordinator(read_table(tmp_path), 20.0, "d", window=2)
    assert _renew(after, "a", 20.0, orders, want=1).stranger
    _join(after, "a", 20.0)
    again = _renew(after, "a", 20.0, orders, leases=orders.leases, want=1)
    assert again.lost == () and [lease.position for lease in again.leases] == [1]
    table = after.table(20.0)
    assert [(state.name, state.since) for state in table.members] == [("a", 5.0)]
    assert [(state.name, state.why) for state in table.gone] == [("c", "cancelled"), ("b", "silent for 10 s")]
    assert table.losses == {1: 1}


def test_a_table_that_is_torn_or_of_other_code_is_an_empty_one(tmp_path: Path) -> None:
    assert read_table(tmp_path) == Table()
    for text in ("", "{", json.dumps({"members": 3}), json.dumps({"other": 1})):
        (tmp_path / NAME).write_text(text)
        assert read_table(tmp_path) == Table()


def test_members_that_are_never_heard_of_after_a_replacement_are_gone_with_that_reason() -> None:
    first = _coordinator()
    _join(first, "a")
    _renew(first, "a", 0.0)
    after = _coordinator(first.table(0.0), 5.0, "d")
    assert [state.name for state in after.table(6.0).members] == ["a"]
    after.sweep(15.1)
    assert [state.why for state in after.table(15.1).gone] == ["not heard of since the coordinator was replaced"]


def test_what_is_remembered_of_those_that_are_gone_is_bounded() -> None:
    coordinator = _coordinator()
    for number in range(1000):
        _join(coordinator, f"a{number}")
        _renew(coordinator, f"a{number}", 0.0, leaving="preempted")
    gone = coordinator.table(0.0).gone
    assert len(gone) == 256 and gone[-1].name == "a999"


def test_a_handed_back_prompt_is_given_to_another_at_once() -> None:
    coordinator = _coordinator(window=1)
    for name in ("a", "b"):
        _join(coordinator, name)
    orders = _renew(coordinator, "a", 0.0, want=1)
    _renew(coordinator, "a", 0.0, ended=(Ended(id=orders.leases[0].id, how="handed back"),))
    (lease,) = _renew(coordinator, "b", 0.0, want=1).leases
    assert lease.partial and lease.position == 0


def test_times_that_others_are_told_are_unix_times_and_no_other_depends_on_a_clock_that_can_be_set() -> None:
    coordinator = Coordinator(CONFIG, 1, "home", "c", Table(), 5.0, unix=1e9)
    _join(coordinator, "a", 6.0)
    _join(coordinator, "b", 7.0)
    _renew(coordinator, "a", 7.0, leaving="preempted")
    coordinator.score(Score(version=2, prompts=8, success=0.5, seconds=1.0), 8.0)
    coordinator.sweep(16.9)
    table = coordinator.table(16.9)
    assert (table.written, table.since, table.scores[0].when) == (1e9 + 16.9, 1e9 + 5, 1e9 + 8)
    assert [one.since for one in table.members] == [1e9 + 7] and [one.gone for one in table.gone] == [1e9 + 7]
    after = Coordinator(CONFIG, 1, "home", "d", table, 2.0, unix=1e9 + 20)  # on another node, with another clock
    _join(after, "b", 2.5)
    assert [one.since for one in after.table(3.0).members] == [1e9 + 7]
