"""Utilisation of emulated actors of which a quarter run at half speed, against 0.92 of all their time.

Utilisation is the share of wall time in which an actor's slots generate, as the mean over all actors, fast and slow:
the wait for the next lease is lost. The shorter a group, the more it weighs: a group of a second is far shorter than
real ones, of tens of seconds and more.
"""

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.emulated import EmulatedLearner, Kind, actors

FAST, SLOW = 24, 8
SECONDS = 1.0
WANTED = 0.92
MEASURED_SECONDS = 30.0
"""As long as rates are remembered."""


def measure() -> dict[str, str | float]:
    """The mean over all actors, once all are there."""
    reached = utilisation(FAST, SLOW, SECONDS, MEASURED_SECONDS)
    return {
        "name": "load_balance", "value": reached, "unit": "share of time", "baseline": WANTED,
        "ratio": reached / WANTED,
    }  # fmt: skip


def utilisation(fast: int, slow: int, seconds: float, measured: float) -> float:
    """Of so many actors, of which the fast ones take `seconds` for a group, after `measured` seconds of steps."""
    count = fast + slow
    with tempfile.TemporaryDirectory() as name:
        learner = EmulatedLearner(Path(name), shards=2, window=8 * count)
        try:
            with (
                actors(learner.endpoints, fast, Kind(seconds=seconds), "fast"),
                actors(learner.endpoints, slow, Kind(seconds=2 * seconds), "slow"),
            ):
                while (status := learner.learners.status()) is None or status.actors < count:
                    time.sleep(0.1)
                end = time.monotonic() + measured
                while time.monotonic() < end:
                    learner.step(count)
                status = learner.learners.status()
                assert status
                return status.utilisation
        finally:
            learner.close()


if __name__ == "__main__":
    for argument in map(float, sys.argv[1:]):
        print(f"groups of {argument} s: {utilisation(FAST, SLOW, argument, MEASURED_SECONDS):.3f}")
