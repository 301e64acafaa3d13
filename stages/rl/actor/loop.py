"""The loop of an actor: orders, weights, begin, step, put."""

import threading
from dataclasses import dataclass
from pathlib import Path

from data.job import Job
from data.trajectories import Trajectories
from data.transport.client import Unreachable
from stages.rl.actor.beginnings import Beginnings
from stages.rl.actor.group import Group
from stages.rl.actor.playing import Playing
from stages.rl.actor.puts import Puts
from stages.rl.actor.rates import Meter
from stages.rl.config import StageConfig
from stages.rl.coordinator.client import Membership
from stages.rl.messages import Lease, Source
from stages.rl.probe import Probe, check_probe
from stages.rl.weights.fetch import Weights
from stages.rl.weights.relay import Relay

LEAVE_SECONDS = 3.0
"""That an actor which is told to go takes for handing back what it has."""
LAST_SECONDS = 1.5
"""For its last word to the coordinator."""
REPORT_SECONDS = 0.5
IDLE_SECONDS = 0.005


def prompts_at_once(config: StageConfig) -> int:
    """Prompts whose samples fill the engine twice: as many wait as are generated."""
    return 2 * -(-config.rl.sampling.slots // config.rl.samples_per_prompt)


@dataclass
class Lines:
    """To those that an actor talks to."""

    membership: Membership
    weights: Weights
    relay: Relay
    puts: Puts
    beginnings: Beginnings
    gives_up: threading.Event
    """Ends what waits for the store."""


class Actor:
    """Plays what it is given."""

    def __init__(self, config: StageConfig, playing: Playing, lines: Lines, job: Job) -> None:
        self.config, self.playing, self.job, self.engine = config, playing, job, playing.engine
        self.membership, self.weights, self.relay = lines.membership, lines.weights, lines.relay
        self.puts, self.beginnings, self.gives_up = lines.puts, lines.beginnings, lines.gives_up
        self.most = prompts_at_once(config)
        self.meter = Meter(self.engine, playing.episodes, config.rl.sampling.slots)
        self.has: Source | None = None
        """The engine's weights."""
        self.is_lost, self.is_checked = False, False
        self.waiting: dict[str, tuple[Lease, int]] = {}
        """For newer weights; each with the version that was the newest when it came."""

    def run(self) -> str:
        """Play until there is a reason to go, which is returned."""
        while not (why := self._reason_to_go()):
            self._obey()
            self._take_weights()
            self._begin_groups()
            self._step()
            self._put_graded()
            self._report()
        return why

    def leave(self, why: str) -> None:
        """Hand back all that is held, with what was played of it, and go, whether or not the others answer."""
        for group in self.playing.halt():
            self._put(group, whole=group.is_whole and group.is_graded)
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
        wanted, has = self.membership.source, self.has
        self.membership.listens(self.relay.appointed(self.membership.relays))
        if wanted and has and wanted.version <= has.version and wanted.digest != has.digest:
            self.is_lost = True  # with learners that have gone back to their checkpoint
        for lease in self.membership.lost():
            self.waiting.pop(lease, None)
            self.beginnings.forget(lease)
            self.playing.drop(lease)

    def _take_weights(self) -> None:
        source = self.weights.hand_to(self.engine)
        if source is None:
            return
        self.has, self.is_lost = source, False
        self.job.beat(f"version {source.version}")
        if source.probe and not self.is_checked:
            with self.playing.paused():
                check_probe(self.engine, Probe.model_validate_json(source.probe), self.config.rl.sampling)
            self.is_checked = True

    def _begin_groups(self) -> None:
        if trouble := self.weights.trouble:
            while self.waiting:
                self.membership.ended(self.waiting.popitem()[0], "handed back", trouble)
        if self.has is None or self.is_lost or trouble:
            return
        # All that is played comes to be put, and has room then.
        room = min(self.most, self.puts.room - self.playing.num_played)
        room -= len(self.playing) + len(self.beginnings) + len(self.waiting)
        for lease in self.membership.take(max(0, room)):
            if lease.partial:
                self.beginnings.fetch(lease)
            else:
                self.waiting[lease.id] = lease, self.membership.source.version if self.membership.source else 0
        for lease, future in self.beginnings.arrived():
            try:
                half = future.result()
            except Unreachable as error:
                self.membership.ended(lease.id, "handed back", str(error))
            else:
                self._begin(lease, half)
        for lease in [lease for lease, newest in self.waiting.values() if self._is_in_time(lease, newest)]:
            self._begin(self.waiting.pop(lease.id)[0], None)

    def _is_in_time(self, lease: Lease, newest: int) -> bool:
        """Whether the weights will not be too old when it is learned from, or there are no newer ones.

        The window opens with each version: what comes last in it is learned from `max_staleness` versions later. What
        was played before, and mostly was too old then, begins with those that were the `newest` when it came.
        """
        source, rl = self.membership.source, self.config.rl
        if source is None or source.version <= self.engine.version:
            return True
        if lease.attempt and self.engine.version < newest:
            return False
        steps = max(0, lease.position - self.membership.cursor) // rl.prompts_per_step
        return source.version + steps - self.engine.version <= rl.asynchronous.max_staleness

    def _begin(self, lease: Lease, half: Trajectories | None) -> None:
        try:
            self.playing.begin(lease, half)
        except ValueError as error:
            self.membership.ended(lease.id, "failed", str(error))

    def _step(self) -> None:
        generates = self.playing.episodes.in_flight > 0
        for lease, why in self.playing.step():
            self.membership.ended(lease.id, "failed", why)
        if not generates:
            self.membership.wait(IDLE_SECONDS)

    def _put_graded(self) -> None:
        for group in self.playing.graded():
            self._put(group, group.is_whole)
        self.puts.check()

    def _put(self, group: Group, whole: bool) -> None:
        self.puts.put(group.lease, lambda: (group.table if whole else group.half)(self.playing.judge), whole)

    def _report(self, *, now: bool = False) -> None:
        if now or self.meter.age > REPORT_SECONDS:
            self.membership.report(self.meter.report())
            self.membership.complain(self.weights.trouble)
            self.job.beat(f"version {self.engine.version}: {len(self.playing)} prompts")
            if warning := self.meter.warning():
                print(f"warning: {warning}", flush=True)


def announced(folder: Path, name: str) -> Path:
    """Where a process beside the learners announces itself."""
    return folder / "endpoints" / f"{name}.json"
