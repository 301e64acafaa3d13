"""The loop of an actor: a real engine and real episodes; what the coordinator says is scripted."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from data.job import Job
from data.rows import SCHEMA
from data.transport.endpoint import Endpoint
from stages.environments.processes import threads
from stages.rl.actor.beginnings import Beginnings
from stages.rl.actor.loop import LAST_SECONDS, LEAVE_SECONDS, Actor, Lines
from stages.rl.actor.playing import Playing
from stages.rl.actor.puts import Puts
from stages.rl.config import StageConfig
from stages.rl.messages import Lease, Source
from stages.rl.store.client import Store
from tests.stages.rollout.test_episodes import TOKENIZER, Talk, engine

CONFIG = StageConfig.model_validate(
    {
        "seed": 1,
        "environment": {"name": "arithmetic"},
        "rl": {
            "mode": "asynchronous", "prompts_per_step": 2, "samples_per_prompt": 4,
            "sampling": {"max_new_tokens": 8, "slots": 8}, "asynchronous": {"max_staleness": 1},
        },
    }
)  # fmt: skip
ROWS = [
    {"id": f"{n}", "prompt": "ab12"[n % 4] * (n + 1), "answer": "a", "trace": "", "level": 0, "seed": 0, "source": "t"}
    for n in range(8)
]


class Told:
    """A membership, and the weights that it leads to."""

    relays, leave, silence, trouble, cursor = False, "", 0.0, "", 0

    def __init__(self) -> None:
        self.source: Source | None = None
        self.arrived: Source | None = None
        self.leases: list[Lease] = []
        self.gone: set[str] = set()
        self.over: dict[str, str] = {}
        self.why = ""

    def take(self, room: int) -> list[Lease]:
        taken, self.leases = self.leases[:room], self.leases[room:]
        return taken

    def lost(self) -> set[str]:
        lost, self.gone = self.gone, set()
        return lost

    def ended(self, id: str, how: str, why: str = "") -> None:
        self.over[id] = how

    def hand_to(self, engine: Any) -> Source | None:
        arrived, self.arrived = self.arrived, None
        if arrived:
            engine.update(None, arrived.version)
        return arrived

    def close(self, why: str, seconds: float) -> None:
        self.why = why

    def appointed(self, yes: bool) -> None: ...
    def listens(self, relay: object) -> None: ...
    def want(self, source: object) -> None: ...
    def complain(self, trouble: str) -> None: ...
    def report(self, rates: object) -> None: ...
    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False


def source(version: int, digest: str = "") -> Source:
    digest = digest or f"of {version}"
    return Source(version=version, digest=digest, num_bytes=1, endpoint=Endpoint("127.0.0.1", 1, "t"))


def lease(position: int, attempt: int = 0) -> Lease:
    return Lease(id=f"lease {position}", position=position, attempt=attempt)


@contextmanager
def running(folder: Path, told: Told) -> Generator[tuple[Actor, Job]]:
    """An actor whose shards are away."""
    gives_up, job = threading.Event(), Job()
    store = Store(folder, 600.0, gives_up.is_set)
    with threads() as pool:
        playing = Playing(CONFIG, engine(), TOKENIZER, Talk([]), pa.Table.from_pylist(ROWS, SCHEMA), pool)
        membership: Any = told
        lines = Lines(membership, membership, membership, Puts(store, membership, "a", 16), Beginnings(store), gives_up)
        yield Actor(CONFIG, playing, lines, job), job


def turn(actor: Actor, until: Callable[[], object], seconds: float = 60.0) -> None:
    """Turns of the loop."""
    end = time.monotonic() + seconds

    def over() -> str:
        assert time.monotonic() < end
        return "over" if until() else ""

    cast(Any, actor)._reason_to_go = over
    actor.run()


def test_groups_begin_with_older_weights_unless_those_will_be_too_old_at_their_turn(tmp_path: Path) -> None:
    told = Told()
    told.source = told.arrived = source(5)
    with running(tmp_path, told) as (actor, _):
        turn(actor, lambda: actor.has)
        told.source, told.cursor = source(6), 20  # and is on its way
        told.leases = [lease(21), lease(22), lease(23)]  # learned from at version 6, and two at version 7
        turn(actor, lambda: actor.waiting and actor.puts.room < 16)
        assert sorted(actor.waiting) == ["lease 22", "lease 23"]
        told.arrived = told.source
        turn(actor, lambda: not actor.waiting and actor.puts.room == 13)
        actor.gives_up.set()


def test_what_was_too_old_before_begins_with_the_newest_weights(tmp_path: Path) -> None:
    told = Told()
    told.source = told.arrived = source(5)
    with running(tmp_path, told) as (actor, _):
        turn(actor, lambda: actor.has)
        told.source, told.leases = source(6), [lease(0, attempt=1), lease(1)]
        turn(actor, lambda: actor.waiting and actor.puts.room < 16)
        assert list(actor.waiting) == ["lease 0"]
        told.arrived = told.source
        turn(actor, lambda: not actor.waiting and actor.puts.room == 14)
        actor.gives_up.set()


def test_who_waits_for_weights_that_do_not_come_hands_its_prompts_back(tmp_path: Path) -> None:
    told = Told()
    told.source = told.arrived = source(5)
    with running(tmp_path, told) as (actor, _):
        turn(actor, lambda: actor.has)
        told.source, told.leases = source(8), [lease(0), lease(1)]
        turn(actor, lambda: len(actor.waiting) == 2)
        told.trouble, told.leases = "nobody answers", [lease(2)]
        turn(actor, lambda: not actor.waiting)
        assert told.over == {"lease 0": "handed back", "lease 1": "handed back"} and told.leases
        told.trouble, told.arrived = "", told.source
        turn(actor, lambda: not told.leases and actor.puts.room == 15)
        actor.gives_up.set()


def test_no_group_begins_with_weights_of_learners_that_have_gone_back_to_their_checkpoint(tmp_path: Path) -> None:
    told = Told()
    told.source = told.arrived = source(9)
    with running(tmp_path, told) as (actor, _):
        turn(actor, lambda: actor.has)
        for now in (source(7, "another 7"), source(9, "another 9"), source(10, "another 10")):
            told.source, told.leases = now, [lease(0)]
            turns = iter(range(10))
            turn(actor, lambda turns=turns: next(turns, None) is None)
            assert told.leases and not actor.waiting and not actor.playing
        told.arrived = told.source
        turn(actor, lambda: not told.leases and actor.puts.room == 15)
        actor.gives_up.set()


def test_a_lease_that_is_lost_in_the_middle_of_an_episode_is_dropped_and_the_others_go_on(tmp_path: Path) -> None:
    told = Told()
    told.source = told.arrived = source(0)
    told.leases = [lease(0), lease(1), lease(2), lease(3)]
    with running(tmp_path, told) as (actor, _):
        turn(actor, lambda: len(actor.playing) == 4)
        told.gone = {"lease 1", "lease 3"}
        turn(actor, lambda: actor.puts.room == 14)
        assert not told.gone and not actor.playing and not actor.playing.episodes
        told.leases = [lease(4)]  # what was dropped has left the engine as it was
        turn(actor, lambda: actor.puts.room == 13)
        actor.gives_up.set()
        assert actor.puts.wait(60)
        assert set(told.over) == {"lease 0", "lease 2", "lease 4"}


def test_told_to_go_while_its_shard_is_away_an_actor_is_gone_within_seconds(tmp_path: Path) -> None:
    told = Told()
    told.source = told.arrived = source(0)
    told.leases = [lease(0), lease(1), lease(2), Lease(id="half", position=7, attempt=0, partial=True)]
    with running(tmp_path, told) as (actor, job):
        turn(actor, lambda: actor.puts.room < 16 and actor.playing)
        job.stop.set()
        began = time.monotonic()
        actor.leave("told to stop")
        assert time.monotonic() - began < LEAVE_SECONDS + LAST_SECONDS + 15
        # With this the coordinator has all that it held, at no cost.
        assert told.why == "told to stop" and set(told.over.values()) <= {"handed back"}
