"""The asynchronous protocol in one process, where every answer can be held up, get lost, or come too late.

Real are: Shelf, Leases and Coordinator, the learner's State and what it decides with it (`stages.rl.choice`), JSON of
checkpoints and messages, and, where asked for, the journal with its files. What is left is who calls whom, and when.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
from past import Past, Round, done
from processes import Actor, Files, Memory, Shard, group_like

from data.segments import Origin
from data.transport.endpoint import Endpoint
from stages.rl.choice import Ready, choose, staleness, thrown_away
from stages.rl.config import AsynchronousConfig
from stages.rl.coordinator.coordinator import Coordinator
from stages.rl.coordinator.status import Status
from stages.rl.coordinator.table import Table
from stages.rl.messages import Advance, Ended, Join, Lease, Renewal, Source
from stages.rl.prompts import row_at
from stages.rl.state import State

SOURCE = Source(version=0, digest="", num_bytes=0, endpoint=Endpoint(host="here", port=1, token="t"))
LEASE_SECONDS = 30.0
SEED = 7


class World:
    """All processes of a run."""

    def __init__(
        self, shards: int, prompts: int, staleness: int, attempts: int, bound: int, stale: str, resample: int,
        rows: int, bad: int, files: Path | None = None,
    ) -> None:  # fmt: skip
        """The grader fails for `bad` of the `rows` whenever it fails; with `files` the journal is the real one."""
        self.config = AsynchronousConfig.model_validate(
            {"max_staleness": staleness, "max_attempts": attempts, "lease_seconds": LEASE_SECONDS, "stale": stale}
        )
        self.prompts, self.window, self.bound = prompts, (staleness + 1) * prompts, bound
        self.resample, self.files = resample, files
        self.ids = pa.chunked_array([[f"p{row}" for row in range(rows)]])
        self.bad, self.grader_fails = {f"p{row}" for row in range(min(bad, rows - 1))}, False
        self.now, self.names, self.starts = 1000.0, count(), count()
        self.durable: set[Origin] = set()
        self.promised: set[Origin] = set()
        """Acknowledged, and not thrown away."""
        self.zombies: list[Shard] = []
        """Processes that were taken for dead, and write what they have taken in later."""
        self.late: list[Origin] = []
        self.actors: dict[str, Actor] = {}
        self.table = Table()
        self.checkpoint, self.committed, self.saved = json.dumps(State().to_json()), 0, Past()
        self.shards: list[Shard] = []
        self.start_learner(shards)

    # Processes that go and come

    def kill_coordinator(self) -> None:
        """All that it had in memory is gone; the table on disk is as it was last written."""
        start = f"c{next(self.starts)}"
        self.coordinator = Coordinator(self.config, len(self.shards), "", start, self.table, self.now)
        self.ended = False

    def kill_shard(self, number: int) -> None:
        """What was on its way to the disk may be lost, be there, or come there later."""
        self.zombies.append(self.shards[number])
        self.shards[number] = self.new_shard(number, len(self.shards))
        self.untold.add(number)

    def new_shard(self, number: int, shards: int) -> Shard:
        start = f"s{next(self.starts)}"
        if self.files is None:
            return Shard(number, shards, start, self.bound, Memory(self.durable, number, shards))
        return Shard(number, shards, start, self.bound, Files(self.files, number, shards, start, {}))

    def zombie_writes(self, index: int) -> None:
        """It finds that it was replaced, so it says nothing to anybody."""
        self.zombies.pop(index).write()

    def start_learner(self, shards: int) -> None:
        """All that ends with it is started anew, from the checkpoint: shards, of whatever number, and coordinator."""
        self.zombies += self.shards
        self.shards = [self.new_shard(number, shards) for number in range(shards)]
        self.state = State.from_json(json.loads(self.checkpoint))
        self.past, self.said, self.thrown, self.told = self.saved.copy(), self.state, self.state, self.state
        self.heard = self.state
        """What the coordinator was last told."""
        self.status: Status | None = None
        self.tries, self.over = self.config.max_staleness + 2, False
        self.untold = set(range(shards))
        """Shards to which something came that the coordinator can't know of before it asks them."""
        self.round: Round | None = None
        self.begin_batch(self.state)
        self.kill_coordinator()

    def write_table(self) -> None:
        self.table = Table.model_validate_json(self.coordinator.table(self.now).model_dump_json())

    # The coordinator and the shards

    def poll(self, number: int) -> None:
        shard = self.shards[number]
        if shard.shelf.restored:
            self.coordinator.inventory(number, shard.inventory(), self.now)
            self.untold.discard(number)

    def sweep(self, seconds: float) -> None:
        self.now += seconds
        self.coordinator.sweep(self.now)

    def write(self, number: int) -> None:
        self.shards[number].write()

    def settle(self, number: int, answered: bool = True) -> None:
        """What is written becomes visible, and is said to the actors that wait."""
        shard = self.shards[number]
        for group, decision in shard.settle(self.promised).items():
            if group.position not in self.coordinator.leases.promises.leased:
                self.untold.add(number)
            for actor in self.actors.values():
                for id in [id for id, putting in actor.putting.items() if putting == group]:
                    del actor.putting[id]
                    if answered:
                        self.answer(actor, id, group, decision)

    def answer(self, actor: Actor, id: str, group: Origin, decision: str) -> None:
        if decision in ("kept", "duplicate", "stale"):
            actor.forget(id)
            actor.ended.append(Ended(id=id, how="stored" if group.whole else "handed back"))

    # Actors

    def new_actor(self) -> Actor:
        name = f"a{next(self.names)}"
        self.actors[name] = Actor(name)
        return self.actors[name]

    def renew(self, actor: Actor, want: int, answered: bool = True, leaving: str = "") -> None:
        """One call; when the answer gets lost, the actor says the same again the next time."""
        self.now += 0.01
        if not actor.joined:
            self.coordinator.join(Join(member=actor.name, node="n", samples_at_once=8, start="1"), self.now)
            actor.joined = True
        living = self.coordinator.members.living.get(actor.name)
        brought = len(actor.leases) if living and living.fresh else 0
        before = self.coordinator.leases.out
        renewal = Renewal(
            member=actor.name, holding=tuple(actor.leases), leases=tuple(actor.leases.values()),
            ended=tuple(actor.ended), want=want, leaving=leaving,
        )  # fmt: skip
        orders = self.coordinator.renew(renewal, self.now)
        self.check_window(before, brought, orders.leases)
        assert not (self.ended and orders.leases), "given out after the end"
        if not answered:
            return
        if orders.stranger:
            actor.joined = False
        else:
            actor.ended = []
        for lost in orders.lost:
            version, lease = actor.versions.get(lost, 0), actor.forget(lost)
            if lease is not None:  # it may be on its way to the store
                self.late.append(self.group(lease, True, version))
        for lease in orders.leases:
            assert lease.id not in actor.leases
            actor.leases[lease.id], actor.versions[lease.id] = lease, self.heard.policy_version
        if orders.leave:
            self.kill_actor(actor)

    def check_window(self, before: int, brought: int, given: tuple[Lease, ...]) -> None:
        """Nothing new is given out beyond the window, and what is out beyond it, comes from elsewhere.

        `before` groups were out before a call in which an actor `brought` leases of an earlier coordinator. They may
        be more than the window has room for, as may be what a learner that went back to its checkpoint has to learn
        from again; then nothing new is given out until all is within the window.
        """
        out, leased = self.coordinator.leases.out, self.coordinator.leases.promises.leased
        assert out <= max(self.window, before + brought)
        shelved = self.coordinator.leases.facts.is_shelved  # and has its room already
        if any(not lease.partial and not shelved(lease.position) for lease in given):
            assert out <= self.window and len(leased) <= self.window
            known = [group for shard in self.shards for group in shard.known().values()]
            there = {group.position for group in known if self.heard_wants(group)}
            if not self.untold:
                assert len(there | set(leased)) <= self.window, "by what there really is"

    def heard_wants(self, group: Origin) -> bool:
        """Whether it is of use, by what the coordinator was last told."""
        position = group.position
        return not self.heard.is_done(position) and group.attempt >= self.heard.attempts.get(position, 0)

    def group(self, lease: Lease, whole: bool, version: int) -> Origin:
        begun = self.shard_of(lease.position).known().get(lease.position) if lease.partial else None
        if begun is not None:
            version = min(version, begun.oldest)
        tokens = 9 if whole else (begun.tokens if begun else 0) + 1
        self.now += 0.001  # no two puts are the same
        return group_like(lease, whole=whole, tokens=tokens, version=version, when=self.now)

    def shard_of(self, position: int) -> Shard:
        return self.shards[position % len(self.shards)]

    def put(self, actor: Actor, id: str, *, whole: bool) -> None:
        """Send a group; the answer comes when it is written, or at once when it is not needed."""
        lease = actor.leases[id]
        group = self.group(lease, whole, actor.versions[id])
        decision = self.shard_of(lease.position).put(group)
        if decision == "kept":
            actor.putting[id] = group
        else:
            self.answer(actor, id, group, decision)

    def kill_actor(self, actor: Actor) -> None:
        """What it was putting may still arrive, at any time."""
        del self.actors[actor.name]
        self.late += [self.group(lease, True, actor.versions[id]) for id, lease in actor.leases.items()]

    def arrive(self, index: int) -> None:
        group = self.late.pop(index)
        self.untold.add(group.position % len(self.shards))
        self.shard_of(group.position).put(group)

    # The learner

    def tell(self, state: State) -> None:
        """Threads say it to shards and coordinator: `hear` and `advance`, later."""
        self.said, self.told = state, state.joined(self.thrown)

    def throw(self, state: State) -> None:
        """The same of what the collector throws away, beside an update."""
        self.thrown, self.told = state, self.said.joined(state)

    def hear(self, number: int) -> None:
        """As the learner's thread does, also when it finds that the shard was started anew."""
        shard = self.shards[number]
        if shard.shelf.restored:
            shard.hear(self.told, self.committed, self.promised)
        else:
            shard.restore(self.told, self.committed, self.promised)
            self.untold.add(number)

    def advance(self) -> None:
        state = self.heard = self.told
        self.status = self.coordinator.advance(
            Advance(
                version=state.policy_version, source=SOURCE.model_copy(update={"version": state.policy_version}),
                window=self.window, cursor=state.cursor, ahead=state.ahead, attempts=state.attempts,
                excused=state.excused,
            ),
            self.now,
        )  # fmt: skip

    def begin_batch(self, state: State) -> None:
        self.looking, self.rounds, self.full = state, 0, False
        self.taken: list[Ready] = []
        self.kept: list[Ready] = []

    def look_ahead(self) -> None:
        """The batch passes, and its update begins; the next one is collected beside it."""
        if self.full and self.round is None:
            self.tries = 0
            state = replace(self.looking, policy_version=self.looking.policy_version + 1)
            self.round = Round(state, self.prompts, {one.position for one in self.taken})

    def look(self) -> None:
        """At what is there: a round is taken once there is enough of it, the rest judged."""
        if self.over or (self.full and self.round is None):
            return
        chosen = {one.position for one in self.taken}
        asked = self.round = self.round or Round(self.looking, self.prompts - len(self.kept), chosen)
        if asked.taken:
            return self.end_round()
        shards = [shard for shard in self.shards if shard.shelf.restored]
        shelved = [(shard.number, group) for shard in shards for group in shard.shelf.ready(asked.lacking)]
        ready = [Ready(g.position, g.attempt, g.tokens, g.samples, g.oldest, number) for number, g in shelved]
        given_up = set(self.status.set_aside) if self.status else set[int]()
        found = choose(ready, asked.state, asked.missing, asked.chosen, self.config)
        state = thrown_away(asked.state, found, given_up, asked.chosen, SEED, self.ids, self.window, self.config)
        if state != asked.state:
            asked.state = state
            self.throw(state)
        asked.lacking = asked.missing - len(found.taken)
        if not asked.lacking:
            asked.taken = found.taken

    def set_aside(self, state: State) -> None:
        before, self.looking = done(self.looking), state
        self.past.aside |= done(state) - before

    def fetch(self, number: int, teaches: Callable[[int], bool] = lambda _: True) -> None:
        """What was taken, from its shard; the last part ends the round."""
        if self.round is None:
            return
        wanted = [one for one in self.round.taken if one.shard == number and one not in self.round.fetched]
        if not wanted or not self.shards[number].shelf.restored:
            return
        self.shards[number].shelf.take([(one.position, one.attempt) for one in wanted])  # it has what it had
        self.round.fetched += wanted
        self.round.teaches = teaches
        self.end_round()

    def end_round(self) -> None:
        """Unless something is missing, or the update before it lasts."""
        if self.round is None or not self.round.is_over or self.full:
            return
        asked, self.round = self.round, None
        self.set_aside(self.looking.joined(asked.state))
        assert not [one for one in asked.taken if self.looking.is_done(one.position)], "taken, and done with"
        self.taken, self.rounds = self.taken + asked.taken, self.rounds + 1
        rejected = {one.position for one in asked.taken if self.resample and not asked.teaches(one.position)}
        self.kept += [one for one in asked.taken if one.position not in rejected]
        self.full = self.rounds > self.resample or len(self.kept) == self.prompts
        if self.full and not self.kept:  # the last round stands for the step
            self.kept = asked.taken
        self.looking = self.looking.done_with(rejected, (), {})
        self.past.rejected |= rejected
        self.tell(self.looking)

    def refuse(self) -> None:
        """The first batch of a start is not what the policy says: it is played anew."""
        if not self.full or self.round or self.tries <= 1:
            return
        self.tries -= 1
        self.set_aside(self.looking.refused({one.position: one.attempt + 1 for one in self.taken}))
        self.begin_batch(self.looking)
        self.tell(self.looking)

    def train(self) -> None:
        """The update is made: what was taken is done with."""
        if not self.full:
            return
        version, positions = self.looking.policy_version, [one.position for one in self.kept]
        assert {position for position in positions if self.looking.is_done(position)} <= self.past.rejected
        if self.config.stale != "keep":
            assert all(staleness(one.oldest, version) <= self.config.max_staleness for one in self.kept)
        prompts = {self.ids[row_at(SEED, position, len(self.ids))].as_py() for position in positions}
        failed = sorted(prompts & self.bad) if self.grader_fails else []
        self.past.trained += positions
        self.past.rejected -= set(positions)
        state = self.looking.done_with([one.position for one in self.taken], (), {})
        self.state, self.tries = state.after_step(state.cursor, 1, 1.0, failed), 0
        self.begin_batch(self.state)
        self.tell(self.state)

    def commit(self) -> None:
        """What the last step has left, whatever was done for the next one."""
        if not self.taken and self.looking == self.state:
            self.checkpoint, self.saved = json.dumps(self.state.to_json()), self.past.copy()
            self.committed = self.state.cursor

    def end(self) -> None:
        """The last step is done and committed; actors go. The run may be given more steps later."""
        if not self.taken and self.looking == self.state:
            self.commit()
            self.over, self.round = True, None
        if self.over:
            self.coordinator.end("the run is done")
            self.ended = True

    # All

    def calm_round(self) -> None:
        """A second in which nothing fails."""
        everything = range(len(self.shards))
        for number in everything:
            self.hear(number)
        self.advance()
        for number in everything:
            self.poll(number)
        self.sweep(1.0)
        for actor in list(self.actors.values()):
            for id in [id for id in actor.leases if id not in actor.hung | set(actor.putting)]:
                self.put(actor, id, whole=True)
        for number in everything:
            self.write(number)
            self.settle(number)
        for actor in list(self.actors.values()):
            self.renew(actor, 4)
        for _ in range(2):  # this batch, and the next one beside its update
            self.look()
            for number in everything:
                self.fetch(number)
            self.look_ahead()
        self.train()

    def check(self) -> None:
        """No position is trained twice or passed over in the surviving history."""
        past, state = self.past, self.looking
        assert len(set(past.trained)) == len(past.trained), "trained twice"
        every = [set(past.trained), past.rejected, past.aside]
        assert sum(map(len, every)) == len(set[int]().union(*every)), "what is done with, is so for one reason"
        assert done(state) == set[int]().union(*every), "lost"
        assert state.positions_set_aside == len(past.aside)
