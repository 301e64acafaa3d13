"""A learner rank and what serves the actors of an asynchronous run: it hands out weights and says where it stands."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

from data.job import Job
from stages.rl.children import Children, endpoint
from stages.rl.config import StageConfig
from stages.rl.coordinator.learners import Learners
from stages.rl.keeper import Keeper
from stages.rl.messages import Advance, Source
from stages.rl.news import News
from stages.rl.parts import Parts
from stages.rl.probe import Probe, make_probe, probe_again
from stages.rl.servers import begin_coordinator, begin_shard, begin_weights, shard_name
from stages.rl.state import State
from stages.rl.store.journal import remove_all
from stages.rl.weights.publish import Publisher, Snapshot

PROBED = 16
"""Versions between two for which the policy's answers to the known prompts are made anew."""


def window_of(config: StageConfig) -> int:
    """Groups that may be out, waiting or learned from at the moment, so that none is too old when its turn comes."""
    return (config.rl.asynchronous.max_staleness + 1) * config.rl.prompts_per_step


class Services:
    """Those of one rank. All ranks make them, and call `publish` and `end`, together."""

    def __init__(self, config: StageConfig, parts: Parts, folder: Path, job: Job, at_end: ExitStack) -> None:
        """Start the children; `at_end` ends them."""
        self.config, self.learner, self.known = config, parts.learner, parts.known
        # The weights have to be there before their server, and go after it.
        announced = endpoint(folder, "weights")
        self.publisher = at_end.enter_context(closing(Publisher(parts.learner, announced, folder / "weights")))
        self._done = False
        at_end.callback(self._remove_journal, folder, job)
        self.children = at_end.enter_context(Children(job, folder))
        begin_shard(self.children, config, parts.step_files)
        begin_coordinator(self.children, config)
        if job.is_first:
            begin_weights(self.children, config, self.publisher.folder)
        self.learners = Learners(endpoint(folder, "coordinator")) if job.is_first else None
        self.news = News(self.learners)
        self.keeper = at_end.enter_context(closing(Keeper(endpoint(folder, shard_name(job.rank)))))
        self._speaker = at_end.enter_context(ThreadPoolExecutor(1, "speaker"))
        """Says to others what takes its time, one after the other, beside the update."""
        self._said: deque[Future[None]] = deque()
        self._lock = threading.Lock()
        self._state, self._thrown = parts.state, parts.state
        self._told: State | None = None
        self.published = 0
        self.source: Source | None = None
        self.probe: Probe | None = None
        """The policy's answers from time to time, of which those of each version are made by one forward pass."""

    def publish(self, state: State) -> None:
        """Hand out the weights, which are those of `state` and may move at once, and tell of it as `tell` does."""
        while self._said:
            self._said.popleft().result()  # no more than one version is on its way
        self.check()
        if self.probe is None or self.published % PROBED == 0:
            self.probe = make_probe(self.learner, self.known)
        probe = probe_again(self.learner, self.probe)
        snapshot = self.publisher.snapshot(state.policy_version)
        if snapshot:
            self._say(self._hand_over, snapshot, probe)
        self.published += 1
        with self._lock:
            self._state, self._told = state, None  # also where the state is an old one: the weights are new
            self._tell()

    def tell(self, state: State) -> None:
        """Where the learners stand. Returns at once."""
        with self._lock:
            self._state = state
            self._tell()

    def throw(self, state: State) -> None:
        """Tell what is set aside or thrown away in `state`, which goes on beside the one that was told of."""
        with self._lock:
            self._thrown = state
            self._tell()

    def _tell(self) -> None:
        state = self._state.joined(self._thrown)
        if state == self._told:
            return  # both say it again by themselves
        self._told = state
        self.keeper.tell(state)
        if self.learners:
            self._say(self._advance, self.learners, state)

    def _say(self, say: Callable[..., None], *what: object) -> None:
        self._said.append(self._speaker.submit(say, *what))

    def _hand_over(self, snapshot: Snapshot, probe: Probe) -> None:
        self.source = self.publisher.hand_over(snapshot, probe.model_dump_json())

    def _advance(self, learners: Learners, state: State) -> None:
        if self.source:
            learners.advance(
                Advance(
                    version=state.policy_version,
                    source=self.publisher.again(self.source),
                    window=window_of(self.config),
                    cursor=state.cursor,
                    ahead=state.ahead,
                    attempts=state.attempts,
                    excused=state.excused,
                    positions_set_aside=state.positions_set_aside,
                )
            )

    def check(self) -> None:
        """Raise what ends the run: a child that ends again and again, and what an actor has told of itself."""
        while self._said and self._said[0].done():
            self._said.popleft().result()
        self.children.check()
        self.news.check()

    def weights_bytes(self) -> dict[str, float]:
        """Bytes of a version that went to other supernodes: of the one before the newest, which is still on its way."""
        traffic = self.publisher.traffic() if self.source else None
        crossed = traffic.crossed if traffic else {}
        return {"weights_bytes_across": sum(crossed[sorted(crossed)[-2:][0]].values())} if crossed else {}

    def end(self, why: str) -> None:
        """The last step is committed: tell all actors to go, after all else was said."""
        self._done = True
        if self.learners:
            self._speaker.submit(self.learners.end, why).result()

    def _remove_journal(self, folder: Path, job: Job) -> None:
        """After the shard, which takes in groups as long as it runs. A result has no use for what was left over."""
        if self._done:
            remove_all(folder, job.rank, job.world_size)
