"""Asynchronous mode whose actors are slow, or all gone: real learners, shards, coordinators and actors."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.metrics import read_metrics
from data.progress import read_progress
from stages.rl.batch_log import read_batches
from tests.stages.rl.test_asynchronous import LIMIT, actor, actors, assert_each_position_was_trained_once

pytestmark = pytest.mark.slow
Start = Callable[..., list[subprocess.Popen[bytes]]]
QUIET = "import stages.rl.news as n; n.QUIET_SECONDS = 0.5\n"
LATE = 6
STRAGGLER = f"""
import sys, time
from pathlib import Path
from data.progress import read_progress
from stages.rl.actor.group import Group
real = Group.table
def table(self, judge):
    while int((read_progress(Path(sys.argv[4])) or {{"done": 0}})["done"]) < {LATE}:
        time.sleep(0.02)
    return real(self, judge)
Group.table = table
"""
"""An actor that puts nothing before the learners have done so many steps."""


def progress(folder: Path) -> dict[str, Any]:
    return read_progress(folder) or {"done": 0}


def held(folder: Path) -> int:
    """Prompts that actors have."""
    path = folder / "actors.json"
    return sum(len(member["held"]) for member in json.loads(path.read_text())["members"]) if path.exists() else 0


def until(condition: Callable[[], object], learner: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end and learner.poll() is None
        time.sleep(0.05)


@pytest.mark.parametrize("stale", ["requeue", "drop", "keep"])
def test_what_is_too_old_is_played_again_or_learned_from_as_the_config_says(
    world: Any, start: Start, stale: str
) -> None:
    folder, steps = world.attempt(), LATE + 20
    config = world.changed(mode="asynchronous", steps=steps, asynchronous={"stale": stale})
    with actors(world, config, folder, 1, STRAGGLER) as played:
        (learner,) = start(config, folder)
        until(lambda: held(folder) >= 3, learner)
        played.append(actor(world, config, folder, "b"))
        assert learner.wait(LIMIT) == 0
    rows, metrics = read_batches(folder).to_pylist(), read_metrics(folder)
    assert_each_position_was_trained_once(folder, steps, 4)
    late = [row for row in rows if row["position"] < 3]
    # What is dropped comes back behind all others, which may be after the end.
    assert all(row["step"] > LATE for row in late) and (len(late) == 3 or stale == "drop")
    if stale == "keep":
        assert {row["attempt"] for row in rows} == {0} and all(row["version"] - row["oldest"] > 2 for row in late)
        assert max(metrics["staleness_max"].to_pylist()) > 2
    else:
        assert all(row["attempt"] > 0 for row in late) and all(row["version"] - row["oldest"] <= 2 for row in rows)
        assert sum(metrics["groups_stale"].to_pylist()) >= 3


def test_when_the_last_actor_is_killed_the_learner_waits_says_so_and_goes_on_when_one_comes(
    world: Any, start: Start, capfd: Any
) -> None:
    """Field reports H2 and H3."""
    folder, steps = world.attempt(), 30
    config = world.changed(mode="asynchronous", steps=steps, asynchronous={"lease_seconds": 2.0})
    with actors(world, config, folder, 1) as played:
        (learner,) = start(config, folder, before=QUIET)
        until(lambda: progress(folder)["done"] >= 2, learner)
        played[0].kill()
        until(lambda: "no actor is there" in str(progress(folder).get("message")), learner)
        assert progress(folder)["done"] < steps
        played.append(actor(world, config, folder, "b"))
        assert learner.wait(LIMIT) == 0
    assert_each_position_was_trained_once(folder, steps, 4)
    said = capfd.readouterr().out
    assert said.rindex("groups are there, no actor is there") < said.rindex("rl: the learners go on")
