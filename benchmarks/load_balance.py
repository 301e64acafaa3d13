"""Utilisation of emulated actors of which a quarter run at half speed, against 0.92 of all their time."""

import tempfile
import time
from pathlib import Path

from benchmarks.emulated import EmulatedLearner, Kind, actors

FAST, SLOW = 24, 8
SECONDS = 1.0
WANTED = 0.92


def measure(fast: int = FAST, slow: int = SLOW, steps: int = 30) -> dict[str, str | float]:
    """The mean over all actors, once all are there."""
    count = fast + slow
    with tempfile.TemporaryDirectory() as name:
        learner = EmulatedLearner(Path(name), shards=2, window=8 * count)
        try:
            with (
                actors(learner.endpoints, fast, Kind(seconds=SECONDS), "fast"),
                actors(learner.endpoints, slow, Kind(seconds=2 * SECONDS), "slow"),
            ):
                while (status := learner.learners.status()) is None or status.actors < count:
                    time.sleep(0.1)
                for _ in range(steps):
                    learner.step(count)
                status = learner.learners.status()
                assert status
                reached = status.utilisation
        finally:
            learner.close()
    return {
        "name": "load_balance", "value": reached, "unit": "share of time", "baseline": WANTED,
        "ratio": reached / WANTED,
    }  # fmt: skip
