"""Three candidates as the learners start them, of which the one that leads is killed."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.emulated import EmulatedActor, EmulatedLearner, Kind
from data.transport.endpoint import Endpoint

QUICK = Kind(seconds=0.1, slots=2, samples=2)
CANDIDATES = 3


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[EmulatedLearner]:
    """Two shards; a window of 24 groups."""
    running = EmulatedLearner(tmp_path, shards=2, window=24, candidates=CANDIDATES)
    yield running
    running.close()


def _leader(learner: EmulatedLearner) -> int:
    """The one that listens where the coordinator is announced."""
    port = Endpoint.read(learner.endpoints / "coordinator.json").port
    (leads,) = [number for number, candidate in learner.candidates.items() if _listens(candidate.pid, port)]
    return leads


def _listens(process: int, port: int) -> bool:
    return any(
        one.laddr.port == port for one in psutil.Process(process).net_connections("tcp") if one.status == "LISTEN"
    )


def _begin_the_ended(learner: EmulatedLearner, but: int) -> None:
    """As a learner does: one that led ends when a pause of the machine costs it its place."""
    for number, candidate in list(learner.candidates.items()):
        if number != but and candidate.poll() is not None:
            learner.candidates[number] = learner.begin_candidate(number)


def test_leases_flow_again_within_5_s_of_a_kill_of_the_candidate_that_leads(learner: EmulatedLearner) -> None:
    actors = [EmulatedActor(learner.endpoints, f"a{number}", QUICK) for number in range(4)]
    for _ in range(3):
        learner.step(8)
    took: list[float] = []
    for _ in range(3):
        leads = _leader(learner)
        learner.candidates[leads].kill()
        learner.candidates[leads].wait()
        killed, granted = time.monotonic(), max(learner.trained) + 24
        while max(learner.trained) <= granted:  # beyond all that the one before can have given out
            _begin_the_ended(learner, but=leads)
            learner.step(4)
        took.append(time.monotonic() - killed)
        learner.candidates[leads] = learner.begin_candidate(leads)  # as its learner does
        assert _leader(learner) != leads
    assert min(took) < 5.0, took  # the machine's pauses make it more, never less
    for actor in actors:
        actor.close()
    assert len(set(learner.trained)) == len(learner.trained)
    assert sum(actor.wasted for actor in actors) == 0
