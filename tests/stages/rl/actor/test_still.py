"""An actor whose engine hangs while the thread that renews lives on."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.emulated import EmulatedLearner
from data.job import Pulse
from stages.rl.actor.run import stands_still
from stages.rl.coordinator.client import Membership
from stages.rl.messages import Join, Lease


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[EmulatedLearner]:
    """A window of 4 groups."""
    running = EmulatedLearner(tmp_path, shards=1, window=4, lease_seconds=6.0)
    yield running
    running.close()


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def _take(member: Membership, leases: list[Lease]) -> int:
    leases += member.take(4 - len(leases))
    return len(leases)


def test_others_play_what_a_member_holds_whose_loop_stands_still_and_the_table_says_why(
    learner: EmulatedLearner, tmp_path: Path
) -> None:
    said = ""
    announced, theirs, others = learner.endpoints / "coordinator.json", list[Lease](), list[Lease]()
    one = Membership(announced, Join(member="a", node="n", samples_at_once=4), lambda: said)
    _until(lambda: _take(one, theirs) == 4)
    two = Membership(announced, Join(member="b", node="n", samples_at_once=4))
    said = "its loop has stood still"
    _until(lambda: _take(two, others) == 4)
    assert {lease.position for lease in others} == {lease.position for lease in theirs}
    table = next(tmp_path.rglob("actors.json"))
    _until(lambda: json.loads(table.read_text())["gone"])
    (gone,) = json.loads(table.read_text())["gone"]
    assert gone["name"] == "a" and gone["trouble"] == said and gone["why"].startswith("silent")
    said = ""  # it turns again
    _until(lambda: one.lost() == {lease.id for lease in theirs})
    one.close("test")
    two.close("test")


def test_a_loop_stands_still_when_it_has_not_turned_for_long_and_does_nothing_that_takes_long() -> None:
    pulse = Pulse(event="version 3", at=time.monotonic() - 100, starting=False)
    assert "still for 90 s (version 3)" in stands_still(pulse, 90) and not stands_still(pulse, 110)
    pulse.slow = 1
    assert not stands_still(pulse, 90)
    pulse.slow = 0
    pulse.beat("version 4")
    assert not stands_still(pulse, 90)
