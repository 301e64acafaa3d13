"""Real weights servers in processes of their own, and bytes to publish without a learner."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

import pytest

from data.job import Job
from data.transport.client import Caller
from data.transport.endpoint import Endpoint
from stages.rl.weights.buffers import drop, keep
from stages.rl.weights.pieces import Outline, outline
from stages.trainer.config import ArchitectureConfig, ModelConfig, OptimizerConfig
from stages.trainer.learner import Learner
from stages.trainer.policy import load_policy

ARCHITECTURE = ArchitectureConfig(
    hidden_size=32, num_layers=2, num_heads=4, num_key_value_heads=2, intermediate_size=48, max_positions=64
)


class Server(NamedTuple):
    """A weights server."""

    process: subprocess.Popen[bytes]
    announced: Path

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.read(self.announced)

    @property
    def caller(self) -> Caller:
        return Caller(self.announced)


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    """Start a root (of a folder) or a relay (of another server's announcement), in a supernode."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(source: Path, supernode: str = "home", *, name: str = "", tls: bool = False) -> Server:
        announced = tmp_path / f"{name or len(processes)}.json"
        root = ["--folder", source] if source.is_dir() else ["--folder", announced.with_suffix(""), "--source", source]
        command = [sys.executable, "-m", "stages.rl.weights", "--announce", announced, "--host", "127.0.0.1"]
        command += ["--parent", os.getpid(), "--supernode", supernode, *root, *["--tls"] * tls]
        before = announced.stat().st_ino if announced.exists() else None
        processes.append(subprocess.Popen([str(word) for word in command]))
        until(lambda: announced.exists() and announced.stat().st_ino != before)
        return Server(processes[-1], announced)

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until `condition` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not come true"
        time.sleep(0.01)


@pytest.fixture
def published(tmp_path: Path) -> Callable[..., Outline]:
    """Put bytes, random ones of a seed, into the folder of a root; they may replace another version."""
    folder = tmp_path / "published"
    folder.mkdir()

    def publish(
        version: int, data: int | bytes = 10_000, *, piece: int = 1000, replaces: Outline | None = None
    ) -> Outline:
        if replaces:
            drop(folder / f"{replaces.digest}.json")
            drop(folder / replaces.digest)
        data = data if isinstance(data, bytes) else random.Random(version).randbytes(data)
        (folder / "new").write_bytes(data)
        found = outline(memoryview(data), version, piece)
        keep(folder / "new", found)
        return found

    return publish


def learner_of(job: Job) -> Learner:
    policy = load_policy(ModelConfig(architecture=ARCHITECTURE), 1)
    return Learner(policy, OptimizerConfig(), 1e-2, 12, job)
