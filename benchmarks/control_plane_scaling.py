"""How throughput and a step grow with the actors: 16 to 512 emulated ones, on this machine.

All between them is real: the coordinator's process and its leases, the shards' processes, their Flight calls and their
journal on disk, and a learner that collects its batches (but does not train). Generation alone is a timed wait. A step
has as many prompts as there are actors, as it would where each actor has a card of its own.

The figure is by how much groups/s grow from the fewest actors to the most. Asked for are 31 times as many from 32 times
as many actors, and a median step that takes at most 18% longer. For each number of actors the CPU seconds of
coordinator, shards, learner and actors per group are printed: what grows there is what limits it.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.emulated import Kind, actors
from data.job import Job
from data.transport.endpoint import Endpoint
from stages.rl.children import ENDPOINTS, Children
from stages.rl.config import AsynchronousConfig
from stages.rl.coordinator.learners import Learners
from stages.rl.messages import Advance, Shelved, Source
from stages.rl.store.client import ShardClient

COUNTS = (16, 64, 256, 512)
SECONDS = 15.0
"""Of generation: a group of a reasoning model takes minutes, so the control plane does ten times its work here."""
SHARDS = 2
STALENESS = 2
STEPS, WARM = 2, STALENESS + 1
"""The first ones eat what has come while the actors joined, as much as the window lets in."""
LEAST_RATIO, MOST_LATENCY = 31.0, 1.18
POLL_SECONDS = 0.05


class Found(NamedTuple):
    """With one number of actors."""

    groups_per_second: float
    step_seconds: float
    """The median."""
    cpu: dict[str, float]
    """Seconds a group, by who spent them."""


def measure() -> dict[str, str | float]:
    """Prints a table."""
    found = {count: scale(count) for count in COUNTS}
    table = Table("actors", "groups/s", "step, s", *(f"{who}, ms CPU a group" for who in found[COUNTS[0]].cpu))
    for count, one in found.items():
        cpu = (f"{1000 * seconds:.1f}" for seconds in one.cpu.values())
        table.add_row(str(count), f"{one.groups_per_second:.2f}", f"{one.step_seconds:.2f}", *cpu)
    Console().print(table)
    few, many = found[COUNTS[0]], found[COUNTS[-1]]
    print(f"the median step takes {many.step_seconds / few.step_seconds:.3f} x as long; at most {MOST_LATENCY} x")
    value = many.groups_per_second / few.groups_per_second
    unit = f"x groups/s of {COUNTS[-1]} actors over {COUNTS[0]}"
    return {
        "name": "control_plane_scaling",
        "value": value,
        "unit": unit,
        "baseline": LEAST_RATIO,
        "ratio": value / LEAST_RATIO,
    }


def scale(count: int, *, seconds: float = SECONDS, steps: int = STEPS) -> Found:
    """Run `count` actors for some steps of `count` prompts."""
    kind = Kind(seconds=seconds, spread=0.05, slots=1)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name, ExitStack() as at_end:
        folder = Path(name)
        children = at_end.enter_context(Children(Job(), folder))
        shards = [_shard(children, folder, number) for number in range(SHARDS)]
        settings = AsynchronousConfig(max_staleness=STALENESS).model_dump_json()
        announced = children.begin(
            "coordinator",
            "stages.rl.coordinator",
            ["--attempt", str(folder), "--host", "127.0.0.1", "--shards", str(SHARDS), "--config", settings],
        )
        learner = Collecting(shards, Learners(announced), count)
        processes = at_end.enter_context(actors(folder / ENDPOINTS, count, kind, processes=max(1, count // 64)))
        for _ in range(WARM):
            learner.step()
        who = {"actors": processes, **_processes(children)}
        before, ends = _cpu(who), [time.monotonic()]
        for _ in range(steps):
            learner.step()
            ends.append(time.monotonic())
        groups = steps * count
        cpu = {name: (now - before[name]) / groups for name, now in _cpu(who).items()}
        return Found(groups / (ends[-1] - ends[0]), float(np.median(np.diff(ends))), cpu)


class Collecting:
    """A learner that takes its batches, lowest positions first, and says so; it trains nothing."""

    def __init__(self, shards: Sequence[ShardClient], learners: Learners, prompts: int) -> None:
        self.shards, self.learners, self.prompts = shards, learners, prompts
        self.version, self.cursor, self.ahead = 0, 0, set[int]()
        for shard in shards:
            shard.restore(0, (), {})
        self._tell()

    def step(self) -> None:
        """Wait for a batch, fetch it, and go on to the next version."""
        while len(ready := self._ready()) < self.prompts:
            time.sleep(POLL_SECONDS)
        picked = sorted(ready, key=lambda one: one.position)[: self.prompts]
        for number, shard in enumerate(self.shards):
            keys = [(one.position, one.attempt) for one in picked if one.position % len(self.shards) == number]
            if keys:
                shard.take(keys)
        self.version += 1
        self.ahead.update(one.position for one in picked)
        while self.cursor in self.ahead:
            self.ahead.remove(self.cursor)
            self.cursor += 1
        for shard in self.shards:
            shard.done(self.cursor, sorted(self.ahead))
        self._tell()

    def _ready(self) -> list[Shelved]:
        return [one for shard in self.shards for one in shard.ready()]

    def _tell(self) -> None:
        nowhere = Endpoint(host="127.0.0.1", port=1, token="")
        self.learners.advance(
            Advance(
                version=self.version,
                source=Source(version=self.version, digest="", num_bytes=0, endpoint=nowhere),
                window=(STALENESS + 1) * self.prompts,
                cursor=self.cursor,
                ahead=tuple(sorted(self.ahead)),
            )
        )


def _shard(children: Children, folder: Path, number: int) -> ShardClient:
    name = f"shard-{number:04d}"
    announced = children.begin(
        name,
        "stages.rl.store",
        [
            *("--announce", str(folder / ENDPOINTS / f"{name}.json"), "--host", "127.0.0.1", "--folder", str(folder)),
            *("--shard", str(number), "--shards", str(SHARDS), "--bytes", str(2**30), "--terms", "verifier"),
        ],
    )
    return ShardClient(announced)


def _processes(children: Children) -> dict[str, list[int]]:
    ids = {name: child.process.pid for name, child in children.children.items() if child.process}
    shards = [pid for name, pid in ids.items() if name.startswith("shard")]
    return {"coordinator": [ids["coordinator"]], "shards": shards}


def _cpu(who: dict[str, list[int]]) -> dict[str, float]:
    """CPU seconds so far."""
    spent = {name: sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids) for name, pids in who.items()}
    own = resource.getrusage(resource.RUSAGE_SELF)
    return {**spent, "learner": own.ru_utime + own.ru_stime}


if __name__ == "__main__":
    for argument in map(int, sys.argv[1:]):
        print(argument, scale(argument, seconds=5.0, steps=3))
