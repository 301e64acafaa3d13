"""How tests run the ranks of a job: real processes that meet through a rendezvous file."""

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from data.job import Job

Ranks = Callable[..., list[Any]]


def _rank(pipe: Connection, function: Callable[..., Any], job: dict[str, Any], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send((function(Job(**job), *arguments), None))
    except BaseException:
        pipe.send((None, traceback.format_exc()))  # for the test; the process ends with the cause as well
        raise


@pytest.fixture(scope="session")
def forkserver() -> multiprocessing.context.ForkServerContext:
    """A server that has imported torch once and forks a process for each rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stages.sft.run"])
    return context


@pytest.fixture
def ranks(forkserver: multiprocessing.context.ForkServerContext, tmp_path: Path) -> Ranks:
    """`ranks(function, world_size, *arguments)`: what `function(job, *arguments)` returns on each rank but `dies`."""
    meetings = iter(range(100))

    def run(function: Callable[..., Any], world_size: int, *arguments: Any, dies: int | None = None) -> list[Any]:
        shared = {"world_size": world_size, "rendezvous": tmp_path / f"rendezvous-{next(meetings)}"}
        running = []
        for rank in range(world_size):
            here, there = forkserver.Pipe()
            process = forkserver.Process(target=_rank, args=(there, function, {"rank": rank, **shared}, arguments))
            process.start()
            there.close()
            running.append((here, process))
        answers = [here.recv() for rank, (here, _) in enumerate(running) if rank != dies]
        for _, process in running:
            process.join()
        assert not any(error for _, error in answers), "\n".join(error for _, error in answers if error)
        return [value for value, _ in answers]

    return run
