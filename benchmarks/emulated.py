"""Emulated actors: real membership, real leases, real puts; generation is a timed wait. Hundreds in a few processes.

`python -m benchmarks.emulated ENDPOINTS --name a --count 64 --seconds 0.5` runs some until its stdin closes.
"""

import argparse
import heapq
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.trajectories import Trajectories
from stages.rl.coordinator.client import Membership
from stages.rl.messages import Join, Lease, Rates
from stages.rl.store.client import Store

REPORT_SECONDS = 1.0


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
        join = Join(member=name, node=f"node-{name}", supernode=supernode, samples_at_once=kind.slots)
        self.kind, self.name = kind, name
        self.membership = Membership(endpoints / "coordinator.json", join)
        self._store = Store(endpoints)
        self._random = random.Random(name)
        self._playing: list[tuple[float, str, Lease]] = []
        self._stop = ""
        self.done = 0
        self.used = 0.0
        """Seconds in which slots were in use, in all slots together."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self, why: str = "told to") -> None:
        """Leave politely."""
        self._stop = why
        self._thread.join()
        self.membership.close(why)

    def _run(self) -> None:
        reported = before = time.monotonic()
        told_done, told_used = 0, 0.0
        while not self._stop and not self.membership.leave:
            for lease in self.membership.take(self.kind.slots - len(self._playing)):
                heapq.heappush(self._playing, (self._ends(), lease.id, lease))
            lost = self.membership.lost()
            if lost:
                self._playing = [one for one in self._playing if one[1] not in lost]
                heapq.heapify(self._playing)
            now = time.monotonic()
            first = self._playing[0][0] if self._playing else now + REPORT_SECONDS
            self.membership.wait(max(0.0, min(first - now, reported + REPORT_SECONDS - now)))
            now = time.monotonic()
            self.used += (now - before) * len(self._playing)
            before = now
            while self._playing and self._playing[0][0] <= now:
                self._put(heapq.heappop(self._playing)[2])
            if now - reported >= REPORT_SECONDS:
                self._report(now - reported, self.done - told_done, self.used - told_used)
                reported, told_done, told_used = now, self.done, self.used

    def _ends(self) -> float:
        if self.kind.stalls:
            return float("inf")
        return time.monotonic() + self.kind.seconds * self._random.uniform(1 - self.kind.spread, 1 + self.kind.spread)

    def _put(self, lease: Lease) -> None:
        source = self.membership.source
        group = group_of(lease, source.version if source else 0, self.kind.samples, self.kind.tokens)
        self._store.put(lease, group, whole=True, member=self.name)
        self.membership.ended(lease.id, "stored")
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
