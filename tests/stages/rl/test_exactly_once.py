"""Over any sequence of events and kills each position is trained once in what survives, and none is lost."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

spec = importlib.util.spec_from_file_location("protocol", Path(__file__).with_name("protocol.py"))
assert spec and spec.loader
protocol: Any = importlib.util.module_from_spec(spec)
sys.modules["protocol"] = protocol
spec.loader.exec_module(protocol)

CALM_ROUNDS = 150


class Protocol(RuleBasedStateMachine):
    """Actors, shards, coordinator and learner, each of which may go at any instant."""

    @initialize(
        shards=st.integers(1, 3),
        prompts=st.integers(1, 3),
        staleness=st.integers(1, 3),
        attempts=st.sampled_from([2, 1000]),
        bound=st.sampled_from([1, 4, 1000]),
        stale=st.sampled_from(["requeue", "drop", "keep"]),
    )
    def begin(self, **settings: Any) -> None:
        self.world = protocol.World(**settings)
        self.world.new_actor()

    def actor(self, data: Any) -> Any:
        return data.draw(st.sampled_from(list(self.world.actors.values())))

    # What goes well

    @rule(data=st.data(), want=st.integers(0, 4), answered=st.booleans())
    @precondition(lambda self: self.world.actors)
    def renew(self, data: Any, want: int, answered: bool) -> None:
        self.world.renew(self.actor(data), want, answered)

    @rule(data=st.data(), whole=st.booleans(), forgets=st.booleans())
    @precondition(lambda self: any(actor.leases for actor in self.world.actors.values()))
    def put(self, data: Any, whole: bool, forgets: bool) -> None:
        actor = data.draw(st.sampled_from([one for one in self.world.actors.values() if one.leases]))
        self.world.put(actor, data.draw(st.sampled_from(list(actor.leases))), whole=whole, forgets=forgets)

    @rule(number=st.integers(0, 2))
    def poll(self, number: int) -> None:
        self.world.poll(number % len(self.world.shards))

    @rule(number=st.integers(0, 2))
    def restore(self, number: int) -> None:
        self.world.restore_shard(number % len(self.world.shards))

    @rule(seconds=st.sampled_from([0.1, 1.0, 40.0]))
    def sweep(self, seconds: float) -> None:
        self.world.sweep(seconds)

    @rule()
    def advance(self) -> None:
        self.world.advance()

    @rule()
    def take(self) -> None:
        self.world.take()

    @rule()
    def train(self) -> None:
        self.world.train()

    @rule()
    def commit(self) -> None:
        self.world.commit()

    @rule()
    def table(self) -> None:
        self.world.write_table()

    @rule(rounds=st.integers(1, 4))
    def calm(self, rounds: int) -> None:
        for _ in range(rounds):
            self.world.calm_round()

    # What does not

    @rule(data=st.data())
    @precondition(lambda self: self.world.late)
    def late_put(self, data: Any) -> None:
        self.world.arrive(data.draw(st.integers(0, len(self.world.late) - 1)))

    @rule()
    @precondition(lambda self: len(self.world.actors) < 4)
    def actor_comes(self) -> None:
        self.world.new_actor()

    @rule(data=st.data())
    @precondition(lambda self: self.world.actors)
    def actor_dies(self, data: Any) -> None:
        self.world.kill_actor(self.actor(data))

    @rule(number=st.integers(0, 2))
    def shard_dies(self, number: int) -> None:
        self.world.shards[number % len(self.world.shards)].kill()

    @rule()
    def coordinator_dies(self) -> None:
        self.world.kill_coordinator()

    @rule()
    def learner_dies(self) -> None:
        self.world.start_learner()

    @rule(number=st.integers(1, 3))
    def learner_comes_with_other_shards(self, number: int) -> None:
        self.world.another_number_of_shards(number)

    @invariant()
    def each_position_once(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """Once nothing fails any more, all that was open is trained, and as much at once as in the beginning."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.new_actor()
        goal = 2 * world.window + max(
            [
                *(world.state.cursor, *world.state.ahead),
                *(group.position for shard in world.shards for group in (*shard.durable, *world.late)),
                *(lease.position for actor in world.actors.values() for lease in actor.leases.values()),
            ]
        )  # behind all that may come in beside what is newly given out
        for _ in range(CALM_ROUNDS):
            world.calm_round()
            if world.state.cursor > goal:
                break
        world.check()
        assert world.state.cursor > goal, "something waits for ever"
        for _ in range(20):
            world.calm_round()
            out = {p for shard in world.shards for p in shard.known()} | set(world.coordinator.leases.leased())
            assert len(out) <= world.window, "the window has grown"


Protocol.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_each_position_is_trained_once_whatever_dies = Protocol.TestCase
