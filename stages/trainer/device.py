"""Where a rank computes, and how the ranks of a job find each other and agree."""

import json
import os
import random
import secrets
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from data.job import Job

Number = TypeVar("Number", int, float)

SHARED_PARAMETERS = 1_000_000
"""Smaller models compute on one core."""


def device_of(job: Job) -> torch.device:
    """The rank's card where there are any (MetaX cards also answer to `cuda`), else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", job.local_rank % torch.cuda.device_count())
    return torch.device("cpu")


def use_cores(job: Job, model: nn.Module) -> None:
    """Let CPU operators run on all cores of the rank, or on one for a model whose operators are too short to share.

    On two cores, whose threads sleep while they wait (spinning ones are fast alone, and forty times slower when others
    compute too): 0.3M parameters train at 26,000 tokens/s on one thread and 16,000 on two, 3.7M at 3,500 and 4,600.
    """
    if device_of(job).type == "cpu":
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        torch.set_num_threads(job.cpus if num_parameters >= SHARED_PARAMETERS else 1)


@contextmanager
def distributed(job: Job) -> Generator[torch.device, None, None]:
    """Join the job's ranks for the length of the block: nccl on cards, gloo on CPUs. Yields the rank's device."""
    device = device_of(job)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.use_deterministic_algorithms(True)
    if job.interface is not None:
        address_of(job)  # an unknown one is an error here, with its name, and not one of gloo (slurm.environment)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = HashStore() if job.world_size == 1 else _meet(job)
    patience = timedelta(seconds=job.collective_seconds)
    dist.init_process_group(backend, store=store, rank=job.rank, world_size=job.world_size, timeout=patience)
    try:
        yield device
    finally:
        dist.destroy_process_group()


def any_rank(flag: bool) -> bool:
    """Whether `flag` is true on any rank. All ranks call it."""
    return largest(int(flag)) == 1


def largest(value: Number) -> Number:
    """The largest `value` of all ranks. All ranks call it."""
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return type(value)(tensor.item())


def total(*values: float) -> list[float]:
    """The sums over all ranks, one for each of `values`, in double precision. All ranks call it."""
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor)
    return [float(value) for value in tensor]


def _meet(job: Job) -> Store:
    """A store that all ranks reach. Rank 0 binds a free port first and then announces it, so no port is ever guessed.

    The announcement carries a token that is also in the store: a rank that reads the announcement of an earlier start,
    or reaches the port of another job, does not find its token and looks again.
    """
    assert job.rendezvous is not None, "a job of several ranks has a rendezvous file"
    timeout = timedelta(seconds=job.start_seconds)
    if job.is_first:
        token = secrets.token_hex(16)
        host = address_of(job)
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        store.set("token", token)
        _announce(job.rendezvous, {"host": host, "port": store.port, "token": token})
        _wait_for_all(store, job)
        return store
    begin = time.monotonic()
    while (waited := time.monotonic() - begin) < job.start_seconds:
        store = _reach(job.rendezvous)
        if store is not None:
            store.set_timeout(timeout)
            store.set(f"rank {job.rank}", job.node)
            return store
        time.sleep(_pause(waited))
    raise TimeoutError(f"rank {job.rank} on {job.node}: rank 0 did not announce itself in {job.rendezvous}")


def _pause(waited: float) -> float:
    """Seconds until a rank looks again: a tenth of what it has waited, since a thousand look at the same file."""
    return min(2.0, max(0.05, waited / 10)) * random.uniform(0.5, 1)


def _wait_for_all(store: Store, job: Job) -> None:
    """Until every rank has reached rank 0's store. TimeoutError names those that have not."""
    waiting = list(range(1, job.world_size))
    deadline = time.monotonic() + job.start_seconds
    while waiting:
        while waiting and store.check([f"rank {waiting[-1]}"]):
            waiting.pop()
        if waiting and time.monotonic() > deadline:
            absent = [rank for rank in waiting if not store.check([f"rank {rank}"])]
            raise TimeoutError(f"ranks {absent} have not reached rank 0 on {job.node} within {job.start_seconds:g} s")
        time.sleep(0.01)


def _reach(rendezvous: Path) -> TCPStore | None:
    try:
        seen = json.loads(rendezvous.read_text())
        store = TCPStore(seen["host"], seen["port"], is_master=False, timeout=timedelta(seconds=2))
        return store if store.check(["token"]) and store.get("token").decode() == seen["token"] else None
    except (FileNotFoundError, dist.DistNetworkError, dist.DistStoreError):
        return None


def _announce(rendezvous: Path, record: dict[str, str | int]) -> None:
    rendezvous.parent.mkdir(parents=True, exist_ok=True)
    aside = rendezvous.with_name(f"{rendezvous.name}.{os.getpid()}")
    aside.touch(mode=0o600)
    aside.write_text(json.dumps(record))
    aside.replace(rendezvous)


def address_of(job: Job) -> str:
    """Where other nodes reach this rank. ValueError when the configured interface is not there."""
    if job.interface is None:
        return job.node
    found: list[str] = []
    for name in job.interface.split(","):
        addresses = [a.address for a in psutil.net_if_addrs().get(name.strip(), []) if a.family == socket.AF_INET]
        if not addresses:
            raise ValueError(f"slurm.interface: {job.node} has no interface {name.strip()!r} with an IPv4 address")
        found += addresses
    return found[0]
