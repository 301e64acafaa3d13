"""The coordinator's process, real shards, and emulated actors over real calls."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.emulated import EmulatedActor, EmulatedLearner, Kind, actors
from benchmarks.load_balance import WANTED, utilisation
from data.transport.client import Caller
from stages.rl.coordinator.server import WATCH_SECONDS
from stages.rl.messages import Join, Message, Orders, Renewal, Watch

QUICK = Kind(seconds=0.1, slots=2, samples=2)
LEASE_SECONDS = 12.0
"""More than this machine ever stands still."""


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[EmulatedLearner]:
    """Two shards; a window of 24 groups."""
    running = EmulatedLearner(tmp_path, shards=2, window=24, lease_seconds=LEASE_SECONDS)
    yield running
    running.close()


def _until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def _taken_away(table: Path | None) -> bool:
    """Whether a folder stands in the table's place, so that nobody can write it."""
    if table is None:
        return False
    table.unlink()
    try:
        table.mkdir()
    except FileExistsError:  # it was just written
        return False
    return True


def test_leases_flow_again_within_5_s_of_a_kill_and_nothing_is_played_twice(learner: EmulatedLearner) -> None:
    four = [EmulatedActor(learner.endpoints, f"a{number}", QUICK) for number in range(4)]
    for _ in range(3):
        learner.step(8)
    took: list[float] = []
    for _ in range(3):
        learner.candidates[0].kill()
        learner.candidates[0].wait()
        killed, granted = time.monotonic(), max(learner.trained) + 24
        learner.candidates[0] = learner.begin_candidate()
        while max(learner.trained) <= granted:  # beyond all that the one before can have given out
            learner.step(4)
        took.append(time.monotonic() - killed)
    assert min(took) < 5.0, took  # the machine's pauses make it more, never less
    for actor in four:
        actor.close()
    assert len(set(learner.trained)) == len(learner.trained)
    assert sum(actor.wasted for actor in four) == 0


def test_an_actor_that_stalls_holds_up_no_batch_and_one_that_is_gone_none_longer_than_its_lease(
    learner: EmulatedLearner,
) -> None:
    stalled = EmulatedActor(learner.endpoints, "stalled", Kind(slots=2, stalls=True))
    _until(lambda: (status := learner.learners.status()) and status.leased >= 2)
    quick = EmulatedActor(learner.endpoints, "quick", QUICK)
    waits = [learner.step(4) for _ in range(6)]
    assert max(waits) < LEASE_SECONDS, waits
    assert 0 not in learner.trained
    stalled.close("told to")
    _until(lambda: learner.step(4) >= 0 and {0, 1} <= set(learner.trained))
    quick.close()


def test_a_batch_that_needs_the_prompts_of_an_actor_that_stands_still_waits_no_longer_than_its_lease(
    tmp_path: Path,
) -> None:
    learner = EmulatedLearner(tmp_path, shards=1, window=4, lease_seconds=LEASE_SECONDS)
    try:
        with actors(learner.endpoints, 1, Kind(slots=2, stalls=True)) as (process,):
            _until(lambda: (status := learner.learners.status()) and status.leased >= 2)
            os.kill(process, signal.SIGSTOP)  # it never leaves, and never says a word again
            quick = EmulatedActor(learner.endpoints, "quick", QUICK)
            waits = [learner.step(4) for _ in range(3)]  # as many as the window has
            assert max(waits) < LEASE_SECONDS + 10.0, waits  # a sweep, and the machine's pauses
            assert {0, 1} <= set(learner.trained)
            quick.close()
    finally:
        learner.close()


def test_with_a_quarter_at_half_speed_actors_generate_in_92_percent_of_the_time() -> None:
    # Whatever else the machine does makes it less, never more.
    assert any(utilisation(fast=6, slow=2, seconds=2.0, measured=10.0) >= WANTED for _ in range(3))


def test_actors_that_go_are_in_the_table_with_the_reason(learner: EmulatedLearner) -> None:
    actor = EmulatedActor(learner.endpoints, "a", QUICK)
    learner.step(2)
    actor.close("preempted")
    table = learner.folder / "actors.json"
    _until(lambda: table.exists() and json.loads(table.read_text())["gone"])
    (gone,) = json.loads(table.read_text())["gone"]
    assert (gone["name"], gone["why"]) == ("a", "preempted")


def test_when_the_run_ends_actors_go(learner: EmulatedLearner) -> None:
    actor = EmulatedActor(learner.endpoints, "a", QUICK)
    learner.step(2)
    learner.learners.end("the run is done")
    _until(lambda: actor.membership.leave == "the run is done")
    actor.close()


def test_a_table_that_cannot_be_written_is_said_and_prompts_of_a_lost_actor_go_to_others_all_the_same(
    learner: EmulatedLearner, tmp_path: Path
) -> None:
    with actors(learner.endpoints, 1, Kind(slots=2, stalls=True)) as (process,):
        _until(lambda: (status := learner.learners.status()) and status.leased >= 2)
        _until(lambda: _taken_away(next(tmp_path.rglob("actors.json"), None)))
        os.kill(process, signal.SIGKILL)
        quick = EmulatedActor(learner.endpoints, "quick", QUICK)
        _until(lambda: learner.step(4) >= 0 and {0, 1} <= set(learner.trained))
        quick.close()


def test_who_watches_is_answered_as_soon_as_the_learner_has_gone_on_and_not_before(learner: EmulatedLearner) -> None:
    caller, me = Caller(learner.endpoints / "coordinator.json"), Renewal(member="watches")
    caller.call("join", Join(member="watches", role="evaluator", node="n"), Message, again=60.0)
    _until(lambda: caller.call("renew", me, Orders).source)
    number = caller.call("renew", me, Orders).watch
    assert number is not None
    began = time.monotonic()
    caller.call("watch", Watch(number=number), Message)  # the learner says again where it is, which is no news
    assert time.monotonic() - began > 0.9 * WATCH_SECONDS
    assert caller.call("renew", me, Orders).watch == number
    actor = EmulatedActor(learner.endpoints, "a", QUICK)
    learner.step(4)
    _until(lambda: (caller.call("renew", me, Orders).watch or 0) > number)
    answers = list[float]()
    for _ in range(5):
        began = time.monotonic()
        caller.call("watch", Watch(number=number), Message)
        answers.append(time.monotonic() - began)
    assert min(answers) < 0.5 * WATCH_SECONDS
    actor.close()
