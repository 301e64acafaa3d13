"""The loop of an actor: take leases and weights, play, put what has ended."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
from transformers import PreTrainedTokenizerFast

from data.job import Job
from data.trajectories import Trajectories
from data.transport.client import Unreachable
from stages.environments.base import BaseEnvironment
from stages.rl.actor.beginnings import Beginnings
from stages.rl.actor.group import Group, begun_again
from stages.rl.actor.puts import Puts
from stages.rl.actor.rates import Meter
from stages.rl.config import StageConfig
from stages.rl.coordinator.client import Membership
from stages.rl.messages import Lease, Source
from stages.rl.probe import Probe, check_probe
from stages.rl.prompts import draw_prompts
from stages.rl.rollouts import Judge
from stages.rl.store.client import Store
from stages.rl.weights.fetch import Weights
from stages.rl.weights.relay import Relay
from stages.rollout.engine import Engine
from stages.rollout.episodes import Episodes, encode_first
from stages.rollout.flight import AnotherAnswer, Played

LEAVE_SECONDS = 3.0
"""That an actor which is told to go takes for handing back what it has."""
LAST_SECONDS = 1.5
"""For its last word to the coordinator."""
REPORT_SECONDS = 0.5
IDLE_SECONDS = 0.02


def prompts_at_once(config: StageConfig) -> int:
    """Prompts whose samples fill the engine twice: as many wait as are generated."""
    return 2 * -(-config.rl.sampling.slots // config.rl.samples_per_prompt)


class Actor:
    """Plays what it is given."""

    def __init__(
        self,
        config: StageConfig,
        engine: Engine,
        tokenizer: PreTrainedTokenizerFast,
        environment: BaseEnvironment,
        train: pa.Table,
        membership: Membership,
        store: Store,
        weights: Weights,
        relay: Relay,
        pool: ThreadPoolExecutor,
        member: str,
        job: Job,
        gives_up: threading.Event,
    ) -> None:
        """`train` is the split that prompts are drawn from; slow environments and terms compute in `pool`.

        `gives_up` ends what waits for `store`.
        """
        self.config, self.engine, self.tokenizer, self.train, self.job = config, engine, tokenizer, train, job
        self.membership, self.weights, self.relay, self.pool = membership, weights, relay, pool
        self.judge = Judge(config.rl, environment, engine.context)
        engine.start(config.rl.sampling)
        self.episodes = Episodes(
            engine,
            tokenizer,
            environment,
            config.rl.sampling,
            pool,
            budget=config.rl.asynchronous.partial_tokens,
        )
        self.most = prompts_at_once(config)
        self.puts, self.beginnings = Puts(store, membership, member, 2 * self.most), Beginnings(store)
        self.meter, self.gives_up = Meter(engine, self.episodes, config.rl.sampling.slots), gives_up
        self.groups: dict[str, Group] = {}
        self.played: dict[str, Group] = {}
        """All said, while terms of their reward are still computed."""
        self.keys: dict[int, tuple[str, int]] = {}
        """(Lease, number of the sample) of what the engine plays."""
        self.next_key, self.has_weights, self.is_checked = 0, False, False

    def run(self) -> str:
        """Play until there is a reason to go, which is returned."""
        while not (why := self._reason_to_go()):
            self._obey()
            self._take_weights()
            if self.has_weights and not self._is_behind():
                self._begin_groups()
            if self.episodes:
                self._play()
            else:
                self.membership.wait(IDLE_SECONDS)
            self._put_graded()
            self.puts.check()
            self._report()
        return why

    def leave(self, why: str) -> None:
        """Hand back all that is held, with what was played of it, and go, whether or not the others answer."""
        halted = self.episodes.halt(self.keys)
        for key, played in halted.items():
            lease, number = self.keys.pop(key)
            self._interrupted(self.groups[lease], number, played)
        for group in [*self.played.values(), *self.groups.values()]:
            self._put(group, whole=group.is_whole and group.is_graded)
        self.played, self.groups = {}, {}
        if not self.puts.wait(LEAVE_SECONDS):
            self.gives_up.set()
            self.puts.wait(LAST_SECONDS)
        self.puts.close()
        self.beginnings.close()
        self._report(now=True)
        self.membership.close(why, LAST_SECONDS)

    def _reason_to_go(self) -> str:
        minutes = self.config.rl.asynchronous.patience_minutes
        if self.job.stop_requested:
            return "told to stop"
        if self.membership.silence > 60 * minutes:
            return f"no coordinator for {minutes:g} minutes"
        return self.membership.leave

    def _obey(self) -> None:
        self.membership.listens(self.relay.appointed(self.membership.relays))
        self.weights.want(self.membership.source)
        for lease in self.membership.lost():
            self.beginnings.forget(lease)
            self.played.pop(lease, None)
            group = self.groups.pop(lease, None)
            if group:
                self._drop(group)

    def _take_weights(self) -> None:
        source = self.weights.hand_to(self.engine)
        if source is None:
            return
        self.has_weights = True
        self.job.beat(f"version {source.version}")
        if source.probe and not self.is_checked:
            self._check(source)

    def _is_behind(self) -> bool:
        """Whether newer weights are on their way.

        The window opens with each version, so what is begun with the last one would be a version too old at its turn.
        """
        source = self.membership.source
        return source is not None and source.version > self.engine.version

    def _check(self, source: Source) -> None:
        """Compare the engine with the policy; what is in flight stops for it, and then goes on."""
        halted = self.episodes.halt(self.keys)
        check_probe(self.engine, Probe.model_validate_json(source.probe), self.config.rl.sampling)
        self.engine.start(self.config.rl.sampling)
        self.is_checked = True
        for key, played in halted.items():
            self.episodes.add(key, played.start, begun_again(played))

    def _begin_groups(self) -> None:
        # All that is played comes to be put, and has room then.
        room = min(self.most, self.puts.room - len(self.played)) - len(self.groups) - len(self.beginnings)
        for lease in self.membership.take(max(0, room)):
            if lease.partial:
                self.beginnings.fetch(lease)
            else:
                self._begin(lease, None)
        for lease, future in self.beginnings.arrived():
            try:
                half = future.result()
            except Unreachable as error:
                self.membership.ended(lease.id, "handed back", str(error))
            else:
                self._begin(lease, half)

    def _begin(self, lease: Lease, half: Trajectories | None) -> None:
        try:
            self._add(lease, half)
        except ValueError as error:
            group = self.groups.pop(lease.id, None)
            if group:
                self._drop(group)
            self.membership.ended(lease.id, "failed", str(error))

    def _add(self, lease: Lease, half: Trajectories | None) -> None:
        config = self.config
        (row,), _ = draw_prompts(config.seed, self.train["id"], lease.position, 1, frozenset())
        task = self.train.slice(row, 1).to_pylist()[0]
        prompt = encode_first(self.engine, self.tokenizer, task["id"], task["prompt"])
        group = Group.of(lease, task, prompt, config.seed, config.rl.samples_per_prompt)
        if half is not None:
            group.go_on_with(half)
        self.groups[lease.id] = group
        for number in sorted(group.playing):
            self._go_on(group, number)
        if not group.playing:
            self._is_played(group)

    def _go_on(self, group: Group, number: int) -> None:
        key, self.next_key = self.next_key, self.next_key + 1
        self.keys[key] = group.lease.id, number
        self.episodes.add(key, group.starts[number], group.begun.get(number))

    def _play(self) -> None:
        generates = self.episodes.in_flight > 0
        for key, played in list(self.episodes.step()):
            lease, number = self.keys.pop(key, ("", 0))
            group = self.groups.get(lease)
            if group is None:
                continue  # it was dropped
            if isinstance(played, AnotherAnswer):
                del group.begun[number]
                self._go_on(group, number)
            elif isinstance(played, ValueError):
                del self.groups[lease]
                self._drop(group)
                self.membership.ended(lease, "failed", str(played))
            elif played.is_interrupted:
                self._interrupted(group, number, played)
            else:
                self._ended(group, number, played)
            if lease in self.groups and not group.playing:
                self._is_played(group)
        if not generates:
            self.membership.wait(IDLE_SECONDS / 10)

    def _ended(self, group: Group, number: int, played: Played) -> None:
        self.meter.episodes += 1
        group.playing.discard(number)
        if self.judge.slow:
            group.grading[number] = self.pool.submit(self.judge.terms_of, played)
            group.ended[number] = played, group.grading[number].result
        else:
            group.ended[number] = played, partial(self.judge.terms_of, played)

    def _interrupted(self, group: Group, number: int, played: Played) -> None:
        group.playing.discard(number)
        group.interrupted[number] = played

    def _is_played(self, group: Group) -> None:
        self.played[group.lease.id] = self.groups.pop(group.lease.id)

    def _put_graded(self) -> None:
        for lease in [lease for lease, group in self.played.items() if group.is_graded]:
            group = self.played.pop(lease)
            self._put(group, group.is_whole)

    def _put(self, group: Group, whole: bool) -> None:
        self.puts.put(group.lease, lambda: (group.table if whole else group.half)(self.judge), whole)

    def _drop(self, group: Group) -> None:
        keys = [key for key, (lease, _) in self.keys.items() if lease == group.lease.id]
        self.episodes.halt(keys)
        for key in keys:
            del self.keys[key]

    def _report(self, *, now: bool = False) -> None:
        if now or self.meter.age > REPORT_SECONDS:
            self.membership.report(self.meter.report())
            self.membership.complain(self.weights.trouble)
            self.job.beat(f"version {self.engine.version}: {len(self.groups)} prompts")


def announced(folder: Path, name: str) -> Path:
    """Where a process beside the learners announces itself."""
    return folder / "endpoints" / f"{name}.json"
