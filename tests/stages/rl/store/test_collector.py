"""A learner's collector with a real shard: what a look takes, and what it throws away."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from data.job import Job
from stages.rl.collect import Collector
from stages.rl.keeper import Keeper
from stages.rl.state import State
from stages.trainer.device import distributed
from tests.stages.rl.store.conftest import Shards, lease, played

LIMIT = 60.0
STATE = State(cursor=5, ahead=tuple(range(9, 60)), policy_version=4)
"""Positions 5 to 8 lag so far behind that they are overdue (window: 12)."""


class Services:
    """Of the real ones what a collector needs: the keeper, what was given up, and who is told."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper, self.given, self.thrown, self.news = keeper, list[int](), list[State](), self

    def given_up(self) -> list[int]:
        return self.given

    def throw(self, state: State) -> None:
        self.thrown.append(state)
        self.keeper.tell(state)


@pytest.fixture
def services(shards: Shards) -> Iterator[Services]:
    shards.begin()
    with closing(Keeper(shards.folder / "endpoints" / "shard-0000.json")) as keeper:
        keeper.tell(STATE)
        keeper.settle(LIMIT)
        yield Services(keeper)


@pytest.fixture
def collector(world: Any, shards: Shards, services: Any) -> Iterator[Collector]:
    ids = pa.chunked_array([[f"p{row}" for row in range(24)]])
    with distributed(Job()), closing(Collector(world.config, ids, shards.folder, Job(), services)) as collector:
        yield collector


def test_what_a_look_takes_is_never_thrown_away_be_it_overdue_or_given_up(
    shards: Shards, services: Services, collector: Collector
) -> None:
    client = shards.client()
    for position in (5, 6, 7):
        assert client.put(lease(position), played(position), whole=True, member="a") == "kept"
    services.given = [6]
    collector.begin(STATE, 4, 0, frozenset())
    while not services.thrown:
        assert not collector.wait(0.01)
    assert [state.attempts for state in services.thrown] == [{8: 1}] and services.thrown[0].positions_set_aside == 0
    services.keeper.settle(LIMIT)
    assert client.put(lease(8), played(8), whole=True, member="a") == "stale"
    assert client.put(lease(8, 1), played(8, 1), whole=True, member="a") == "kept"
    assert collector.wait(LIMIT)
    share = collector.end()
    assert share and [(one.position, one.attempt) for one in share.taken] == [(5, 0), (6, 0), (7, 0), (8, 1)]
    assert share.mine.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert share.state == services.thrown[-1] and len(services.thrown) == 1


def test_what_is_learned_from_is_not_taken_again_and_waiting_ends_when_told_to_stop(
    shards: Shards, collector: Collector
) -> None:
    for position in (5, 6):
        shards.client().put(lease(position), played(position), whole=True, member="a")
    collector.begin(STATE, 1, 0, frozenset({5}))
    assert collector.wait(LIMIT)
    share = collector.end()
    assert share and [one.position for one in share.taken] == [6]
    collector.begin(STATE, 1, 0, frozenset({5, 6}))
    assert not collector.wait(0.1)
    collector.stop = True
    assert collector.wait(LIMIT) and collector.end() is None


def test_it_waits_for_what_comes_next_in_order_until_a_learner_waits(shards: Shards, collector: Collector) -> None:
    client, state = shards.client(), State(cursor=5, ahead=(9, 10), policy_version=4)
    for position in (6, 8):
        client.put(lease(position), played(position), whole=True, member="a")
    collector.begin(state, 2, 0, frozenset())
    time.sleep(0.3)
    assert collector.share and not collector.share.done()
    client.put(lease(5), played(5), whole=True, member="a")
    end = time.monotonic() + LIMIT
    while not collector.share.done():
        assert time.monotonic() < end
        time.sleep(0.01)
    share = collector.end()
    assert share and [one.position for one in share.taken] == [5, 6]
    collector.begin(state, 1, 0, frozenset({5, 6}))
    time.sleep(0.3)
    assert not collector.share.done()
    assert collector.wait(LIMIT)
    share = collector.end()
    assert share and [one.position for one in share.taken] == [8]
