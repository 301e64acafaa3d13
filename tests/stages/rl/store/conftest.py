"""Shards in processes of their own."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from data.trajectories import Trajectories
from stages.rl.messages import Lease
from stages.rl.store.client import ShardClient, Store

SECONDS = 60.0
"""More than any call here takes on a machine that is busy with other tests."""


def played(position: int, attempt: int = 0, samples: int = 2, tokens: int = 12) -> Trajectories:
    """Always the same for the same position and attempt."""
    random = np.random.default_rng([position, attempt])
    mask = np.tile(np.arange(tokens) >= 4, samples)
    return Trajectories(
        tokens=random.integers(0, 1000, samples * tokens, np.int32),
        mask=mask,
        logprobs=np.where(mask, -random.random(samples * tokens), 0).astype(np.float32),
        versions=np.where(mask, 3 + np.arange(samples * tokens) % 2, -1).astype(np.int32),
        offsets=np.arange(samples + 1, dtype=np.int64) * tokens,
        prompt_lengths=np.full(samples, 4, np.int32),
        rewards=random.random(samples).astype(np.float32),
        terms=random.random((samples, 2), np.float32),
        finished=np.ones(samples, np.bool_),
        limits=np.full(samples, 8, np.int32),
        graded=np.ones(samples, np.bool_),
        groups=np.zeros(samples, np.int32),
        seeds=np.arange(samples, dtype=np.int64) + position,
        prompt_ids=(f"prompt-{position}",) * samples,
    )


def lease(position: int, attempt: int = 0) -> Lease:
    return Lease(id=f"{position}.{attempt}", position=position, attempt=attempt)


@dataclass
class Shards:
    """Those of one run."""

    folder: Path
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict[int, subprocess.Popen[bytes]])

    def begin(
        self, shard: int = 0, shards: int = 1, num_bytes: int = 2**30, *, tls: bool = False, file_bytes: int = 0
    ) -> ShardClient:
        """What it says is in `log`. With `file_bytes` it can write no longer file."""
        (self.folder / "endpoints").mkdir(exist_ok=True)
        announce = self.folder / "endpoints" / f"shard-{shard:04d}.json"
        given = {
            "announce": announce,
            "parent": os.getpid(),
            "host": "127.0.0.1",
            "folder": self.folder,
            "shard": shard,
            "shards": shards,
            "bytes": num_bytes,
            "terms": "verifier,length",
        }
        command = [sys.executable, "-m", "stages.rl.store", *(f"--{key}={value}" for key, value in given.items())]
        command += ["--tls"] if tls else []
        announce.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.processes[shard] = subprocess.Popen(command, stdout=log, stderr=log)
        if file_bytes:
            resource.prlimit(self.processes[shard].pid, resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        return self.client(shard)

    def client(self, shard: int = 0) -> ShardClient:
        return ShardClient(self.folder / "endpoints" / f"shard-{shard:04d}.json", SECONDS)

    def store(self) -> Store:
        return Store(self.folder / "endpoints", SECONDS)

    def kill(self, shard: int = 0) -> None:
        self.processes[shard].send_signal(signal.SIGKILL)
        self.processes.pop(shard).wait()

    def segments(self) -> list[Path]:
        return sorted((self.folder / "trajectories").glob("*"))


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    found = Shards(tmp_path)
    yield found
    for shard in list(found.processes):
        found.kill(shard)
