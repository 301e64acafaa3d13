"""MB/s of groups that actors put into a shard, journalled before each answer, against what the machine can do at most.

That is the lesser of a bare Flight do_put of the same batches on loopback, whose server drops what comes, and of a bare
sequential write of the same bytes to the same disk with one fsync at its end. Both are printed, and a third figure, for
what they cost each other on the cores that they share: the same Flight, whose server writes each stream into a file as
it is, with an fsync, and looks at nothing.
"""

import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
from pyarrow import flight

from data.segments import num_bytes
from data.trajectories import Trajectories
from data.transport.server import end_with
from data.transport.trajectories import batches, schema
from stages.rl.actor.puts import SIDE_BY_SIDE
from stages.rl.messages import Lease
from stages.rl.store.client import ShardClient
from stages.rl.store.sending import STREAMS

GROUPS, SAMPLES, TOKENS = 2048, 16, 4096
"""0.9 MB a group, 1.7 GB in all, so that the beginning, when little is under way, counts for little."""
ACTORS = 8
TOGETHER = SIDE_BY_SIDE // STREAMS
"""So many go in one stream."""
ROUNDS = 5
WRITE_BYTES = 2**23
WARM_BYTES = 2**32
"""Memory that is used and given back before each run. A virtual machine's host takes its time to give it pages that it
has not used for a while, many times that of a copy, and whoever comes first would pay for it."""


class Bare(flight.FlightServerBase):
    """Takes a stream, and answers when all has come, which it drops, or has written into a file of `folder` before."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._folder, self._numbers = folder, count()

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        """See the class."""
        if self._folder is None:
            for _ in reader:
                pass
        else:
            some = [chunk.data for chunk in reader]
            buffers = [buffer for batch in some for column in batch.columns for buffer in column.buffers() if buffer]
            with (self._folder / str(next(self._numbers))).open("wb") as file:
                os.writev(file.fileno(), [memoryview(buffer) for buffer in buffers])
                os.fsync(file.fileno())
        writer.write(b"done")


def measure() -> dict[str, str | float]:
    """The best of `ROUNDS` alternating runs of each."""
    group = _group()
    total = GROUPS * num_bytes(group)
    best = {"store": 0.0, "flight": 0.0, "disk": 0.0, "flight and disk": 0.0}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        sides: dict[str, Callable[[], float]] = {
            "store": lambda: _store(folder, group),
            "flight": lambda: _flight(folder, group),
            "disk": lambda: _disk(folder, total),
            "flight and disk": lambda: _flight(folder, group, write=True),
        }
        for _ in range(ROUNDS):
            for side, run in sides.items():
                np.ones(WARM_BYTES, np.uint8)
                best[side] = max(best[side], total / run() / 1e6)
    print(", ".join(f"{side} {rate:.0f} MB/s" for side, rate in best.items()))
    value, baseline = best["store"], min(best["flight"], best["disk"])
    return {"name": "store_vs_flight", "value": value, "unit": "MB/s", "baseline": baseline, "ratio": value / baseline}


def _group() -> Trajectories:
    random, total = np.random.default_rng(0), SAMPLES * TOKENS
    mask = np.tile(np.arange(TOKENS) >= TOKENS // 8, SAMPLES)
    return Trajectories(
        tokens=random.integers(0, 150_000, total, np.int32),
        mask=mask,
        logprobs=np.where(mask, -random.random(total), 0).astype(np.float32),
        versions=np.where(mask, 1, -1).astype(np.int32),
        offsets=np.arange(SAMPLES + 1, dtype=np.int64) * TOKENS,
        prompt_lengths=np.full(SAMPLES, TOKENS // 8, np.int32),
        rewards=random.random(SAMPLES).astype(np.float32),
        terms=random.random((SAMPLES, 1), np.float32),
        finished=np.ones(SAMPLES, np.bool_),
        limits=np.full(SAMPLES, TOKENS, np.int32),
        graded=np.ones(SAMPLES, np.bool_),
        groups=np.zeros(SAMPLES, np.int32),
        seeds=np.arange(SAMPLES, dtype=np.int64),
        prompt_ids=("prompt",) * SAMPLES,
    )


def _store(folder: Path, group: Trajectories) -> float:
    given = ["--folder", str(folder), "--shard=0", "--shards=1", f"--bytes={2**34}", "--terms=verifier"]
    with _server(folder, ["-m", "stages.rl.store", "--host=127.0.0.1", *given]) as announced:
        ShardClient(announced).restore(0, [], {})
        clients = [ShardClient(announced) for _ in range(ACTORS)]

        def put(position: int) -> None:
            lease = Lease(id=str(position), position=position, attempt=0)
            assert clients[position % ACTORS].put(lease, group, True, "actor") == "kept"

        seconds = _seconds(put, GROUPS, ACTORS * SIDE_BY_SIDE)
    for path in (folder / "trajectories").iterdir():
        path.unlink()
    return seconds


def _flight(folder: Path, group: Trajectories, *, write: bool = False) -> float:
    written = folder / "written"
    written.mkdir(exist_ok=True)
    given = ["--folder", str(written)] if write else []
    with _server(folder, ["-m", "benchmarks.store_vs_flight", *given]) as announced:
        clients = [flight.FlightClient(announced.read_text()) for _ in range(ACTORS)]

        def put(number: int) -> None:
            descriptor = flight.FlightDescriptor.for_command(b"put")
            writer, reader = clients[number % ACTORS].do_put(descriptor, schema(1))
            with writer:
                for _ in range(TOGETHER):
                    for batch in batches(group):
                        writer.write_batch(batch)
                writer.done_writing()
                assert reader.read() is not None

        seconds = _seconds(put, GROUPS // TOGETHER, ACTORS * STREAMS)
    rmtree(written)
    return seconds


def _disk(folder: Path, total: int) -> float:
    block = np.random.default_rng(0).bytes(WRITE_BYTES)
    path = folder / "bare"
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(total // WRITE_BYTES + 1):
            file.write(block)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def _seconds(put: Callable[[int], None], puts: int, threads: int) -> float:
    """Of all `puts`, so many `threads` at a time."""
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        list(pool.map(lambda first: [put(number) for number in range(first, puts, threads)], range(threads)))
        return time.perf_counter() - began


@contextmanager
def _server(folder: Path, command: Sequence[str]) -> Generator[Path]:
    announced = folder / "endpoints" / "server.json"
    announced.parent.mkdir(exist_ok=True)
    announced.unlink(missing_ok=True)
    arguments = ["--announce", str(announced), "--parent", str(os.getpid())]
    process = subprocess.Popen([sys.executable, *command, *arguments])
    try:
        while not announced.exists():
            assert process.poll() is None
            time.sleep(0.01)
        yield announced
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--announce", type=Path)
    parser.add_argument("--parent", type=int)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    server = Bare(given.folder)
    aside = given.announce.with_suffix(".writing")
    aside.write_text(f"grpc://127.0.0.1:{server.port}")
    aside.replace(given.announce)
    end_with(given.parent)
