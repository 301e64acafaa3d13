"""MB/s of groups that actors put into a shard, journalled before each answer, against what the machine can do at most.

That is the lesser of a bare Flight do_put of the same batches on loopback, whose server drops what comes, and of a bare
sequential write of the same bytes to the same disk with one fsync at its end. Both are printed.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import flight

from data.segments import num_bytes
from data.trajectories import Trajectories
from data.transport.server import end_with
from data.transport.trajectories import batches, schema
from stages.rl.messages import Lease
from stages.rl.store.client import ShardClient
from stages.rl.store.sending import STREAMS

GROUPS, SAMPLES, TOKENS = 256, 16, 4096
"""0.9 MB a group, 220 MB in all."""
ACTORS = 8
SIDE_BY_SIDE = 4
"""Groups that an actor has under way (`stages.rl.actor.puts`)."""
TOGETHER = SIDE_BY_SIDE // STREAMS
"""So many go in one stream."""
ROUNDS = 5
WRITE_BYTES = 2**23


class Bare(flight.FlightServerBase):
    """Takes a stream, drops it, and answers when all has come."""

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        """See the class."""
        for _ in reader:
            pass
        writer.write(b"done")


def measure() -> dict[str, str | float]:
    """The best of `ROUNDS` alternating runs of each."""
    group = _group()
    total = GROUPS * num_bytes(group)
    best = {"store": 0.0, "flight": 0.0, "disk": 0.0}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        sides: dict[str, Callable[[], float]] = {
            "store": lambda: _store(folder, group),
            "flight": lambda: _flight(folder, group),
            "disk": lambda: _disk(folder, total),
        }
        for _ in range(ROUNDS):
            for side, run in sides.items():
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


def _flight(folder: Path, group: Trajectories) -> float:
    with _server(folder, ["-m", "benchmarks.store_vs_flight"]) as announced:
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

        return _seconds(put, GROUPS // TOGETHER, ACTORS * STREAMS)


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
    server = Bare("grpc://127.0.0.1:0")
    aside = Path(sys.argv[2]).with_suffix(".writing")
    aside.write_text(f"grpc://127.0.0.1:{server.port}")
    aside.replace(sys.argv[2])
    end_with(int(sys.argv[4]))
