"""Emulated actors: real membership, real leases, real puts; generation is a timed wait. Hundreds in a few processes.

`python -m benchmarks.emulated ENDPOINTS --name a --count 64 --seconds 0.5` runs some until its stdin closes.
"""

import argparse
import heapq
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.trajectories import Trajectories
from data.transport.endpoint import Endpoint
from stages.rl.config import AsynchronousConfig
from stages.rl.coordinator.client import Membership
from stages.rl.coordinator.learners import Learners
from stages.rl.messages import Advance, Join, Lease, Rates, Source
from stages.rl.store.client import ShardClient, Store

REPORT_SECONDS = 1.0
SIDE_BY_SIDE = 8
"""Puts of an actor at the same time."""


class Playing(NamedTuple):
    """A group in a slot; times are monotonic ones. No two end at the very same one and begin at it as well."""

    ends: float
    begins: float
    lease: Lease


@dataclass(frozen=True)
class Kind:
    """What an emulated actor is like."""

    seconds: float = 0.5
    """Mean time of a group."""
    spread: float = 0.25
    """Times are uniform within this share of the mean."""
    slots: int = 2
    """Groups at once."""
    samples: int = 4
    """Of a group."""
    tokens: int = 64
    """Of a sample: prompt 16, the rest chosen."""
    stalls: bool = False
    """Takes leases and never ends one, though it renews."""


def group_of(lease: Lease, version: int, samples: int, tokens: int) -> Trajectories:
    """What an actor would have played: right in form, and the same for the same position and attempt."""
    random_ = np.random.default_rng((lease.position, lease.attempt))
    total = samples * tokens
    mask = np.tile(np.arange(tokens) >= 16, samples)
    return Trajectories(
        tokens=random_.integers(0, 1000, total, dtype=np.int32),
        mask=mask,
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        versions=np.where(mask, version, -1).astype(np.int32),
        offsets=np.arange(samples + 1, dtype=np.int64) * tokens,
        prompt_lengths=np.full(samples, 16, dtype=np.int32),
        rewards=random_.random(samples, dtype=np.float32),
        terms=random_.random((samples, 1), dtype=np.float32),
        finished=np.ones(samples, dtype=np.bool_),
        limits=np.full(samples, tokens - 16, dtype=np.int32),
        graded=np.ones(samples, dtype=np.bool_),
        groups=np.zeros(samples, dtype=np.int32),
        seeds=np.arange(samples, dtype=np.int64),
        prompt_ids=(f"prompt-{lease.position}",) * samples,
    )


class EmulatedActor:
    """One actor: a thread that plays, beside the one that renews."""

    def __init__(self, endpoints: Path, name: str, kind: Kind, supernode: str = "") -> None:
        """`endpoints` has the announcements of coordinator and shards."""
        self.most = 2 * kind.slots  # as in a real actor, as many wait as are played
        join = Join(member=name, node=f"node-{name}", supernode=supernode, samples_at_once=self.most)
        self.kind, self.name = kind, name
        self.membership = Membership(endpoints / "coordinator.json", join)
        self._store = Store(endpoints)
        self._random = random.Random(name)
        self._playing: list[Playing] = []
        self._waiting = deque[Lease]()
        self._putting = ThreadPoolExecutor(SIDE_BY_SIDE, "puts")
        self._stop = ""
        self._counting = threading.Lock()
        self.done = self.wasted = 0
        """Groups that it has put, and those of them that the store had no use for."""
        self.used = 0.0
        """Seconds in which slots generated, in all slots together: neither puts nor waits for a lease are in it."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self, why: str = "told to") -> None:
        """Leave politely."""
        self._stop = why
        self._thread.join()
        self._putting.shutdown()
        self.membership.close(why)

    def _run(self) -> None:
        reported = before = time.monotonic()
        told_done, told_used = 0, 0.0
        while not self._stop and not self.membership.leave:
            now = time.monotonic()
            while self._playing and self._playing[0].ends <= now:
                self._putting.submit(self._put, heapq.heappop(self._playing).lease)
            self._drop(self.membership.lost())
            self._waiting += self.membership.take(self.most - len(self._playing) - len(self._waiting))
            while self._waiting and len(self._playing) < self.kind.slots:
                self._begin(self._waiting.popleft())
            now = time.monotonic()
            first = self._playing[0].ends if self._playing else now + REPORT_SECONDS
            self.membership.wait(max(0.0, min(first - now, reported + REPORT_SECONDS - now)))
            now = time.monotonic()
            self.used += sum(max(0.0, min(now, one.ends) - max(before, one.begins)) for one in self._playing)
            before = now
            if now - reported >= REPORT_SECONDS:
                self._report(now - reported, self.done - told_done, self.used - told_used)
                reported, told_done, told_used = now, self.done, self.used

    def _begin(self, lease: Lease) -> None:
        now, spread = time.monotonic(), self.kind.spread
        takes = self.kind.seconds * self._random.uniform(1 - spread, 1 + spread)
        heapq.heappush(self._playing, Playing(now + (math.inf if self.kind.stalls else takes), now, lease))

    def _drop(self, lost: set[str]) -> None:
        if lost:
            self._playing = [one for one in self._playing if one.lease.id not in lost]
            heapq.heapify(self._playing)
            self._waiting = deque(lease for lease in self._waiting if lease.id not in lost)

    def _put(self, lease: Lease) -> None:
        source = self.membership.source
        group = group_of(lease, source.version if source else 0, self.kind.samples, self.kind.tokens)
        decision = self._store.put(lease, group, whole=True, member=self.name)
        self.membership.ended(lease.id, "stored")
        with self._counting:
            self.wasted += decision != "kept"
            self.done += 1

    def _report(self, seconds: float, groups: int, used: float) -> None:
        samples, chosen = groups * self.kind.samples, self.kind.tokens - 16
        source = self.membership.source
        self.membership.report(
            Rates(
                seconds=seconds, tokens=samples * chosen, episodes=samples, busy=used / self.kind.slots,
                version=source.version if source else -1, slots=self.kind.slots * self.kind.samples,
                in_flight=len(self._playing) * self.kind.samples,
            )
        )  # fmt: skip


class EmulatedLearner:
    """Real shards and a real coordinator, and who takes what is ready without learning from it."""

    def __init__(
        self, folder: Path, shards: int, window: int, lease_seconds: float = 30.0, candidates: int = 1
    ) -> None:
        """`folder` is the attempt's."""
        self.folder, self.endpoints, self._shards, self._window = folder, folder / "endpoints", shards, window
        self._count = candidates
        self._config = AsynchronousConfig(lease_seconds=lease_seconds)
        self.endpoints.mkdir(parents=True, exist_ok=True)
        self.processes = [self._begin_shard(number) for number in range(shards)]
        self.candidates = {number: self.begin_candidate(number) for number in range(candidates)}
        """For coordinator, by number."""
        self.clients = [ShardClient(self.endpoints / f"shard-{number:04d}.json") for number in range(shards)]
        self.learners = Learners(self.endpoints / "coordinator.json")
        self.version, self.cursor, self.ahead = 0, 0, set[int]()
        self.trained: list[int] = []
        """Positions, in the order in which they were taken."""
        for client in self.clients:
            client.restore(0, (), {})
        self._tell()

    def begin_candidate(self, number: int = 0) -> subprocess.Popen[bytes]:
        """Also after a kill."""
        arguments = ["--attempt", self.folder, "--shards", self._shards, "--config", self._config.model_dump_json()]
        arguments += ["--candidate", number, "--candidates", self._count, "--learners", "first"]
        return self._begin("stages.rl.coordinator", *arguments)

    def step(self, groups: int, seconds: float = 60.0) -> float:
        """Take so many groups, the lowest positions that are ready. Returns the seconds that they were waited for."""
        began = time.monotonic()
        while True:
            ready = sorted((one.position, one.attempt) for client in self.clients for one in client.ready())[:groups]
            if len(ready) == groups:
                break
            assert time.monotonic() - began < seconds, f"{len(ready)} of {groups} groups after {seconds:.0f} s"
            time.sleep(0.02)
        waited = time.monotonic() - began
        for number, client in enumerate(self.clients):
            keys = [key for key in ready if key[0] % self._shards == number]
            if keys:
                client.take(keys)
        self.trained += [position for position, _ in ready]
        self.ahead.update(position for position, _ in ready)
        while self.cursor in self.ahead:
            self.ahead.remove(self.cursor)
            self.cursor += 1
        for client in self.clients:
            client.done(self.cursor, self.ahead)
        self.version += 1
        self._tell()
        return waited

    def close(self) -> None:
        """End all processes."""
        for process in (*self.candidates.values(), *self.processes):
            process.kill()
            process.wait()

    def _tell(self) -> None:
        source = Source(version=self.version, digest="", num_bytes=0, endpoint=Endpoint("127.0.0.1", 1, ""))
        ahead = tuple(sorted(self.ahead))
        self.learners.advance(
            Advance(version=self.version, source=source, window=self._window, cursor=self.cursor, ahead=ahead)
        )

    def _begin_shard(self, number: int) -> subprocess.Popen[bytes]:
        announce = self.endpoints / f"shard-{number:04d}.json"
        arguments = ["--announce", announce, "--folder", self.folder, "--shard", number, "--shards", self._shards]
        return self._begin("stages.rl.store", *arguments, "--bytes", 2**28, "--terms", "verifier")

    def _begin(self, module: str, *arguments: object) -> subprocess.Popen[bytes]:
        common = ["--host", "127.0.0.1", "--parent", str(os.getpid())]
        return subprocess.Popen([sys.executable, "-m", module, *common, *map(str, arguments)])


@contextmanager
def actors(endpoints: Path, count: int, kind: Kind, name: str = "a", processes: int = 1) -> Generator[list[int]]:
    """`count` of them, in that many processes, whose ids are yielded; they end with the block."""
    started = list[subprocess.Popen[bytes]]()
    try:
        for process in range(processes):
            some = len(range(process, count, processes))
            command = [sys.executable, "-m", "benchmarks.emulated", str(endpoints), "--count", str(some)]
            command += ["--name", f"{name}{process}-", *_arguments(kind)]
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.send_signal(signal.SIGKILL)
            process.communicate()


def _arguments(kind: Kind) -> Sequence[str]:
    found = [f"--{name}={getattr(kind, name)}" for name in ("seconds", "spread", "slots", "samples", "tokens")]
    return [*found, *(["--stalls"] if kind.stalls else [])]


def main() -> None:
    """Run some until stdin closes, then leave politely."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emulated")
    parser.add_argument("endpoints", type=Path)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--name", default=f"{os.getpid()}-")
    for name, default in (("seconds", 0.5), ("spread", 0.25)):
        parser.add_argument(f"--{name}", type=float, default=default)
    for name, default in (("slots", 2), ("samples", 4), ("tokens", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--stalls", action="store_true")
    given = parser.parse_args()
    kind = Kind(given.seconds, given.spread, given.slots, given.samples, given.tokens, given.stalls)
    running = [EmulatedActor(given.endpoints, f"{given.name}{number}", kind) for number in range(given.count)]
    sys.stdin.buffer.read()
    for actor in running:
        actor.close("the end")


if __name__ == "__main__":
    main()
