"""Asynchronous mode over three supernodes of one machine: the learner in "a", actors in "b" and "c"."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from data.metrics import read_metrics
from data.transport.client import Caller
from stages.rl.weights.pull import traffic
from tests.stages.rl.test_asynchronous import ACTOR, assert_each_position_was_trained_once

LIMIT = 200.0
STEPS = 12
AWAY = ACTOR.replace("folder, name =", "folder, name, supernode =").replace(
    "Job(job_id=name)", "Job(job_id=name, supernode=supernode)"
)
LEARNER = """
import sys, time
import data.job
from stages.rl.batch import Batches
init, real = data.job.Job.__init__, Batches.next
data.job.Job.__init__ = lambda self, **given: init(self, supernode="a", **given)
def next(self, step, state):
    while not (Path(sys.argv[4]) / f"may-{step}").exists():
        time.sleep(0.02)
    return real(self, step, state)
Batches.next = next
"""
"""A learner that begins each step when the test says so."""


class Run:
    """A run whose processes end with the test."""

    def __init__(self, world: Any, start: Any, at_end: ExitStack) -> None:
        self.world, self.at_end, self.folder = world, at_end, world.attempt()
        self.config = world.changed(mode="asynchronous", steps=STEPS, asynchronous={"lease_seconds": 3.0})
        (self.learner,) = start(self.config, self.folder, before=LEARNER)
        at_end.callback(self.learner.kill)
        self.actors = {name: self.actor(name) for name in ("b0", "b1", "c0", "c1")}
        self.weights = Caller(self.folder / "endpoints" / "weights.json")

    def actor(self, name: str) -> "subprocess.Popen[bytes]":
        """One in the supernode that its name begins with."""
        paths = [str(path) for path in (self.world.synth, self.world.sft, self.folder)]
        command = [sys.executable, "-c", AWAY, self.config.model_dump_json(), *paths, name, name[0]]
        process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
        self.at_end.callback(process.kill)
        return process

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < end and self.learner.poll() is None, what
            time.sleep(0.05)

    def members(self) -> list[dict[str, Any]]:
        path = self.folder / "actors.json"
        return json.loads(path.read_text())["members"] if path.exists() else []

    def all_have(self, version: int) -> bool:
        """Whether all actors that live are members with this version; a slow one may cease to be one for a moment."""
        living = sum(process.poll() is None for process in self.actors.values())
        return [one["version"] for one in self.members()] == [version] * living

    def relays(self) -> dict[str, str]:
        """By supernode, the actor that hands weights on."""
        return {one["supernode"]: one["name"][:2] for one in self.members() if one["relay"]}

    def relay(self, actor: str) -> list[psutil.Process]:
        children = psutil.Process(self.actors[actor].pid).children()
        return [child for child in children if "stages.rl.weights" in child.cmdline()]

    def crossed(self, version: int) -> dict[str, int]:
        """Bytes of a version that went to other supernodes."""
        return traffic(self.weights).crossed.get(version, {})

    def learn(self, step: int) -> None:
        """One more step, whose version arrives everywhere."""
        (self.folder / f"may-{step}").touch()
        self.until(lambda: self.all_have(step), f"version {step}")


@pytest.fixture
def played(world: Any, start: Any) -> Generator[Run]:
    with ExitStack() as at_end:
        yield Run(world, start, at_end)


@pytest.mark.slow
def test_each_version_crosses_once_for_each_supernode_which_is_reported_and_relays_that_die_are_replaced(
    played: Run,
) -> None:
    played.until(lambda: set(played.relays()) == {"b", "c"}, "relays")
    played.until((played.folder / "endpoints" / "weights.json").exists, "a weights server")
    played.until(lambda: set(played.crossed(0)) == {"b", "c"}, "version 0 in both")  # an engine begins with version 0
    played.until(lambda: played.all_have(0), "version 0")
    for step in range(1, 6):
        played.learn(step)
    crossed = [played.crossed(version) for version in range(6)]
    size = crossed[0]["b"]
    once = {"b": size, "c": size}
    assert all(places in (once, {}) for places in crossed) and crossed.count(once) >= 3  # an update may change nothing

    (relay,) = played.relay(played.relays()["b"])
    relay.kill()
    played.learn(6)
    killed = played.relays()["c"]
    played.actors[killed].kill()
    played.until(lambda: played.relays().get("c") == {"c0": "c1", "c1": "c0"}[killed], "another relay")
    for step in (7, 8):
        played.learn(step)

    for step in range(9, STEPS + 1):
        (played.folder / f"may-{step}").touch()
    assert played.learner.wait(LIMIT) == 0
    assert all(process.wait(60) == 0 for name, process in played.actors.items() if name != killed)
    assert_each_position_was_trained_once(played.folder, STEPS, 4)
    rows = read_metrics(played.folder)
    reported = dict(zip(rows["step"].to_pylist(), rows["weights_bytes_across"].to_pylist(), strict=True))
    assert reported[2] == reported[4] == 2 * size  # at steps that are committed, of the version before
