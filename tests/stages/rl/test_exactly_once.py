"""Over any sequence of events and kills each position is trained once in what survives, and none is lost."""

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

sys.path.append(str(Path(__file__).parent))
from protocol import Actor, World

CALM_ROUNDS = 200


class Protocol(RuleBasedStateMachine):
    """Actors, shards, coordinator and learner, each of which may go at any instant."""

    def files(self) -> Path | None:
        """Where the journal is; None: in memory."""
        return None

    @initialize(
        shards=st.integers(1, 3),
        prompts=st.integers(1, 3),
        staleness=st.integers(1, 3),
        attempts=st.sampled_from([2, 1000]),
        bound=st.sampled_from([1, 400, 100_000]),
        stale=st.sampled_from(["requeue", "drop", "keep"]),
        resample=st.sampled_from([0, 0, 1]),
        rows=st.sampled_from([2, 5, 1000]),
        bad=st.integers(0, 3),
    )
    def begin(self, **settings: Any) -> None:
        self.world = World(**settings, files=self.files())
        self.world.new_actor()

    def actor(self, data: Any) -> Actor:
        return data.draw(st.sampled_from(list(self.world.actors.values())))

    def lease(self, data: Any) -> tuple[Actor, str]:
        """One that its actor plays, and is not putting."""
        leases = [(actor, id) for actor in self.world.actors.values() for id in actor.leases if id not in actor.putting]
        return data.draw(st.sampled_from(leases))

    def one_is_played(self) -> bool:
        return any(actor.leases.keys() - actor.putting.keys() for actor in self.world.actors.values())

    def shard(self, number: int) -> int:
        return number % len(self.world.shards)

    # What goes well

    @rule(data=st.data(), want=st.integers(0, 4), answered=st.booleans())
    @precondition(lambda self: self.world.actors)
    def renew(self, data: Any, want: int, answered: bool) -> None:
        self.world.renew(self.actor(data), want, answered)

    @rule(data=st.data(), whole=st.booleans())
    @precondition(lambda self: self.one_is_played())
    def put(self, data: Any, whole: bool) -> None:
        self.world.put(*self.lease(data), whole=whole)

    @rule(number=st.integers(0, 2))
    def write(self, number: int) -> None:
        self.world.write(self.shard(number))

    @rule(number=st.integers(0, 2), answered=st.booleans())
    def settle(self, number: int, answered: bool) -> None:
        self.world.settle(self.shard(number), answered)

    @rule(number=st.integers(0, 2))
    def poll(self, number: int) -> None:
        self.world.poll(self.shard(number))

    @rule(number=st.integers(0, 2))
    def hear(self, number: int) -> None:
        self.world.hear(self.shard(number))

    @rule(seconds=st.sampled_from([0.1, 1.0, 40.0]))
    def sweep(self, seconds: float) -> None:
        self.world.sweep(seconds)

    @rule()
    def advance(self) -> None:
        self.world.advance()

    @rule()
    def look(self) -> None:
        self.world.look()

    @rule()
    def look_ahead(self) -> None:
        self.world.look_ahead()

    @rule(number=st.integers(0, 2), teaches=st.sampled_from([1, 2, 7]))
    def fetch(self, number: int, teaches: int) -> None:
        self.world.fetch(self.shard(number), lambda position: position % teaches == 0)

    @rule()
    def train(self) -> None:
        self.world.train()

    @rule()
    def commit(self) -> None:
        self.world.commit()

    @rule()
    def table(self) -> None:
        self.world.write_table()

    @rule(rounds=st.sampled_from([1, 2, 4, 20]))
    def calm(self, rounds: int) -> None:
        for _ in range(rounds):
            self.world.calm_round()

    @rule()
    def end(self) -> None:
        self.world.end()

    # What does not

    @rule(data=st.data())
    @precondition(lambda self: self.world.late)
    def late_put(self, data: Any) -> None:
        self.world.arrive(data.draw(st.integers(0, len(self.world.late) - 1)))

    @rule(data=st.data())
    @precondition(lambda self: self.world.zombies)
    def late_write(self, data: Any) -> None:
        self.world.zombie_writes(data.draw(st.integers(0, len(self.world.zombies) - 1)))

    @rule()
    @precondition(lambda self: len(self.world.actors) < 4)
    def actor_comes(self) -> None:
        self.world.new_actor()

    @rule(data=st.data())
    @precondition(lambda self: self.world.actors)
    def actor_dies(self, data: Any) -> None:
        self.world.kill_actor(self.actor(data))

    @rule(data=st.data())
    @precondition(lambda self: self.world.actors)
    def actor_leaves(self, data: Any) -> None:
        self.world.renew(self.actor(data), 0, leaving="preempted")

    @rule(data=st.data())
    @precondition(lambda self: self.one_is_played())
    def lease_hangs(self, data: Any) -> None:
        """As long as the window has room for a batch beside: an actor that lives and never ends is given up by that."""
        actor, id = self.lease(data)
        hung = sum(len(one.hung & one.leases.keys()) for one in self.world.actors.values())
        if hung < self.world.window - self.world.prompts:
            actor.hung.add(id)

    @rule(fails=st.booleans())
    def grader(self, fails: bool) -> None:
        self.world.grader_fails = fails

    @rule()
    def refuse(self) -> None:
        self.world.refuse()

    @rule(number=st.integers(0, 2))
    def shard_dies(self, number: int) -> None:
        self.world.kill_shard(self.shard(number))

    @rule()
    def coordinator_dies(self) -> None:
        self.world.kill_coordinator()

    @rule(shards=st.integers(1, 3))
    def learner_dies(self, shards: int) -> None:
        self.world.start_learner(shards)

    @invariant()
    def each_position_once(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """Once nothing fails any more, all that was open is trained, and as much at once as in the beginning."""
        if not hasattr(self, "world"):
            return
        world = self.world
        if world.over:
            world.end()
            for _ in range(5):
                world.calm_round()
            assert not world.actors, "the run is done"
            world.start_learner(2)
        world.new_actor()
        goal = 2 * world.window + highest(world)  # behind all that may come in beside what is newly given out
        for _ in range(CALM_ROUNDS):
            world.calm_round()
            if world.looking.cursor > goal:
                break
        world.check()
        assert world.looking.cursor > goal, "something waits for ever"
        for _ in range(20):
            world.calm_round()
            out = {p for shard in world.shards for p in shard.known()} | set(world.coordinator.leases.promises.leased)
            assert len(out) <= world.window, "the window has grown"


class ProtocolWithFiles(Protocol):
    """The same with the journal's files."""

    def files(self) -> Path:
        self.folder = tempfile.TemporaryDirectory()
        return Path(self.folder.name)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if hasattr(self, "folder"):
                self.folder.cleanup()


def _settings(examples: int) -> settings:
    unmeasured = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(max_examples=examples, stateful_step_count=50, deadline=None, suppress_health_check=unmeasured)


Protocol.TestCase.settings = _settings(200)
ProtocolWithFiles.TestCase.settings = _settings(10)
test_each_position_is_trained_once_whatever_dies = Protocol.TestCase
test_each_position_is_trained_once_out_of_the_files_of_the_journal = ProtocolWithFiles.TestCase


def highest(world: World) -> int:
    """The highest position that anybody knows of."""
    found: list[Iterable[int]] = [(world.looking.cursor,), world.looking.ahead]
    found += [[group.position for group in (*world.promised, *world.late)]]
    found += [
        [group.position for group in (*shard.waiting, *shard.written)] for shard in (*world.shards, *world.zombies)
    ]
    found += [[lease.position for lease in actor.leases.values()] for actor in world.actors.values()]
    found += [shard.known() for shard in world.shards]
    return max(position for positions in found for position in positions)
