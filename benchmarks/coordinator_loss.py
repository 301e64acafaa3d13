"""Seconds from kill -9 of the coordinator until leases flow again, against 5. Real shards, 32 emulated actors."""

import tempfile
import time
from pathlib import Path

from benchmarks.emulated import EmulatedLearner, Kind, actors

ACTORS = 32
KILLS = 3
LIMIT_SECONDS = 5.0


def measure() -> dict[str, str | float]:
    """The slowest of several kills."""
    seconds = list[float]()
    with tempfile.TemporaryDirectory() as name:
        learner = EmulatedLearner(Path(name), shards=2, window=4 * ACTORS)
        try:
            with actors(learner.endpoints, ACTORS, Kind(seconds=0.5)):
                for _ in range(KILLS):
                    for _ in range(4):
                        learner.step(ACTORS)
                    seconds.append(_replace(learner))
        finally:
            learner.close()
        assert len(set(learner.trained)) == len(learner.trained)
    worst = max(seconds)
    return {
        "name": "coordinator_loss", "value": worst, "unit": "s", "baseline": LIMIT_SECONDS,
        "ratio": worst / LIMIT_SECONDS,
    }  # fmt: skip


def _replace(learner: EmulatedLearner) -> float:
    known = learner.learners.status()
    assert known
    learner.candidates[0].kill()
    learner.candidates[0].wait()
    killed = time.monotonic()
    learner.candidates[0] = learner.begin_candidate()
    while True:
        learner.step(1)
        status = learner.learners.status()
        if status and status.start != known.start and status.leased > 0:
            return time.monotonic() - killed
