"""What serves the actors of an asynchronous run, beside the learners: shards, coordinator and weights server."""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import torch.distributed as dist

from data.job import Job
from stages.rl.children import Children, endpoint
from stages.rl.config import StageConfig
from stages.rl.coordinator.client import Learners
from stages.rl.coordinator.members import MemberState
from stages.rl.coordinator.status import Status
from stages.rl.keeper import Keeper
from stages.rl.messages import Advance, Source
from stages.rl.parts import Parts
from stages.rl.probe import Probe, make_probe, probe_again
from stages.rl.state import State
from stages.rl.step_files import StepFiles
from stages.rl.weights.publish import Publisher, Snapshot
from stages.rollout.parity import ParityError
from stages.trainer.device import address_of

QUIET_SECONDS = 10.0
"""That learners wait before they say so."""
CANDIDATES = 3
"""Of Raft: one may be lost."""
PROBED = 16
"""Versions between two for which the policy's answers to the known prompts are made anew."""
ENDS = {error.__name__: error for error in (ParityError, ValueError)}
"""Troubles of actors that end the run, as they would in synchronous mode: no other actor would do better."""


def window_of(config: StageConfig) -> int:
    """Groups that may be out, waiting or learned from at the moment, so that none is too old when its turn comes."""
    return (config.rl.asynchronous.max_staleness + 1) * config.rl.prompts_per_step


class Services:
    """Those of one rank. All ranks make them, and call `publish` and `end`, together."""

    def __init__(self, config: StageConfig, parts: Parts, folder: Path, job: Job, at_end: ExitStack) -> None:
        """Start the children; `at_end` ends them."""
        self.config, self.learner, self.known, self.job = config, parts.learner, parts.known, job
        # The weights have to be there before their server, and go after it.
        announced = endpoint(folder, "weights")
        self.publisher = at_end.enter_context(closing(Publisher(parts.learner, announced, folder / "weights")))
        self.children = at_end.enter_context(Children(job, folder))
        self._begin_shard(folder, parts.step_files)
        self.learners: Learners | None = None
        self._begin_coordinator(folder)
        if job.is_first:
            self._begin_weights(folder)
            self.learners = Learners(endpoint(folder, "coordinator"))
        self.keeper = at_end.enter_context(closing(Keeper(endpoint(folder, f"shard-{job.rank:04d}"))))
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
        status = self.status()
        for member, trouble in status.troubles.items() if status else ():
            name, _, why = trouble.partition(": ")
            if name in ENDS:
                raise ENDS[name](f"{why} (told by actor {member})")

    def status(self) -> Status | None:
        """What the coordinator has last said. Rank 0 alone knows."""
        return self.learners.status() if self.learners else None

    def members(self) -> Sequence[MemberState]:
        """The actors and the evaluator, as the coordinator has last said. Rank 0 alone knows."""
        status = self.status()
        return status.members if status else ()

    def given_up(self) -> Sequence[int]:
        """Positions that the coordinator has set aside."""
        status = self.status()
        return sorted(status.set_aside) if status else ()

    def score(self) -> dict[str, float]:
        """What the evaluator has found last."""
        status = self.status()
        newest = max(status.scores, key=lambda found: found.version, default=None) if status else None
        return {"evaluator_success": newest.success, "evaluator_version": newest.version} if newest else {}

    def reasons(self) -> Sequence[str]:
        """Why those positions were set aside."""
        status = self.status()
        return list(status.set_aside.values()) if status else ()

    def metrics(self) -> dict[str, float]:
        """How the actors are, by what the coordinator has last said."""
        status = self.status()
        if status is None:
            return {}
        return {
            "actors": status.actors,
            "actors_utilisation": status.utilisation,
            "actors_tokens_per_second": status.tokens_per_second,
            "episodes_per_second": status.episodes_per_second,
            **self.score(),
        }

    def weights_bytes(self) -> dict[str, float]:
        """Bytes of a version that went to other supernodes: of the one before the newest, which is still on its way."""
        traffic = self.publisher.traffic() if self.source else None
        crossed = traffic.crossed if traffic else {}
        return {"weights_bytes_across": sum(crossed[sorted(crossed)[-2:][0]].values())} if crossed else {}

    def left_over(self) -> str:
        """What was begun and will not be learned from, in words; "" where there is nothing. Rank 0 alone knows."""
        status = self.status()
        return in_words(status) if status else ""

    def end(self, why: str) -> None:
        """Tell all actors to go, after all else was said."""
        if self.learners:
            self._speaker.submit(self.learners.end, why).result()

    def _begin_shard(self, folder: Path, step_files: StepFiles) -> None:
        rank, settings = self.job.rank, self.config.rl.asynchronous
        name = f"shard-{rank:04d}"
        self.children.begin(
            name,
            "stages.rl.store",
            [
                *("--announce", str(endpoint(folder, name)), "--host", address_of(self.job), "--folder", str(folder)),
                *("--shard", str(rank), "--shards", str(self.job.world_size), "--bytes", str(settings.store_bytes)),
                *("--terms", ",".join(step_files.terms), "--environment-hash", step_files.environment_hash),
                *(["--tls"] if settings.tls else []),
            ],
        )

    def _begin_weights(self, folder: Path) -> None:
        self.children.begin(
            "weights",
            "stages.rl.weights",
            [
                *("--announce", str(endpoint(folder, "weights")), "--host", address_of(self.job)),
                *("--supernode", self.job.supernode, "--folder", str(self.publisher.folder)),
                *(["--tls"] if self.config.rl.asynchronous.tls else []),
            ],
        )

    def _begin_coordinator(self, folder: Path) -> None:
        """One candidate on each of the learners' first nodes; they elect one. All ranks call it together."""
        nodes, learners = _everyones([self.job.node, secrets.token_hex(8)])
        firsts = [nodes.index(node) for node in candidates(nodes)]
        if self.job.is_first:
            endpoint(folder, "coordinator").unlink(missing_ok=True)
        if self.job.rank not in firsts:
            return
        self.children.begin(
            f"candidate-{firsts.index(self.job.rank)}",
            "stages.rl.coordinator",
            [
                *("--attempt", str(folder), "--host", address_of(self.job), "--supernode", self.job.supernode),
                *("--shards", str(self.job.world_size)),
                *("--candidate", str(firsts.index(self.job.rank)), "--candidates", str(len(firsts))),
                *("--learners", learners[0], "--config", self.config.rl.asynchronous.model_dump_json()),
            ],
        )


def in_words(status: Status) -> str:
    """What waits and what is being played; "" where there is nothing."""
    begun = status.leased + status.partial
    return f"{status.ready} groups that waited, {begun} that were being played" if begun + status.ready else ""


def candidates(nodes: Sequence[str]) -> list[str]:
    """The nodes that have one each: three, or one, since two could not lose any."""
    different = list(dict.fromkeys(nodes))[:CANDIDATES]
    return different if len(different) == CANDIDATES else different[:1]


def _everyones(mine: list[str]) -> list[list[str]]:
    """For each of the strings of a rank, those of all ranks. All ranks call it together."""
    found: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, mine)
    return [list(column) for column in zip(*found, strict=True)]


class Patience:
    """Says for what the learners wait: in the log once, and again when that has changed."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.said = ""

    def waits(self, there: int, wanted: int, seconds: float) -> str:
        """They have waited for `seconds`, and `there` of the `wanted` groups are there. In words, on rank 0."""
        groups = f"{there} of {wanted} groups are there"
        self.services.job.beat(f"waiting for actors: {groups}")
        if not self.services.job.is_first or seconds < QUIET_SECONDS:
            return ""
        status = self.services.status()
        if status is None:
            why = "the coordinator has not answered yet"
        else:
            number = f"{status.actors} actor{' plays' if status.actors == 1 else 's play'}"
            why = number if status.actors else "no actor is there"
        if why != self.said:
            print(f"rl: the learners wait: {groups}, {why}", flush=True)
            self.said = why
        return f"waiting for {seconds:.0f} s: {groups}, {why}"

    def over(self) -> None:
        """A batch is there."""
        if self.said:
            print("rl: the learners go on", flush=True)
            self.said = ""
