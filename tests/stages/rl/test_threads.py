"""Threads that fail: whoever they work for hears of it, and a server ends with one."""

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from data.job import Job
from data.threads import Worker
from stages.rl.children import Children
from stages.rl.coordinator.client import Membership
from stages.rl.coordinator.learners import Learners
from stages.rl.keeper import Keeper
from stages.rl.messages import Join, Source
from stages.rl.state import State
from stages.rl.weights.fetch import Weights
from tests.stages.rl.weights.conftest import until

SOURCE: dict[str, Any] = {
    "version": 1,
    "digest": "0",
    "num_bytes": 1,
    "endpoint": {"host": "h", "port": 1, "token": ""},
}
COORDINATOR = """
import sys, threading
from stages.rl.coordinator.__main__ import main, Election
from stages.rl.coordinator.coordinator import Coordinator
from stages.rl.store.client import ShardClient

def broken(*_, **__):
    raise MemoryError("a thread has failed")

def leads(self):
    return broken() if threading.current_thread().name == "election" else True

match sys.argv.pop(1):
    case "poll": ShardClient.inventory = broken
    case "sweep": Coordinator.sweep = broken
    case "election": Election.is_leader = property(leads)
main()
"""


def broken(*_: Any, **__: Any) -> Any:
    raise MemoryError("a thread has failed")


def weights(folder: Path) -> Generator[Callable[[], Any]]:
    found = Weights(folder / "weights.json")
    found._arriving.fetch = broken
    found.want(Source.model_validate(SOURCE))
    yield lambda: found.hand_to(Any)


def membership(folder: Path) -> Generator[Callable[[], Any]]:
    found = Membership(folder / "coordinator.json", Join(member="a", node="n"))
    found._caller.call = broken

    def check() -> None:
        if found.leave:
            raise RuntimeError(found.leave)

    yield check


def learners(folder: Path) -> Generator[Callable[[], Any]]:
    found = Learners(folder / "coordinator.json")
    found._caller.call = broken
    yield found.status


def keeper(folder: Path) -> Generator[Callable[[], Any]]:
    found = Keeper(folder / "shard-0000.json")
    found._teller.restore = broken
    found.tell(State())
    yield found.ready


def children(folder: Path) -> Generator[Callable[[], Any]]:
    with Children(Job(), folder) as found:
        found.begin("one", "stages.rl.weights", ["--no-such-option"])
        found.children["one"].begin = broken  # as where a process cannot be forked
        yield found.check


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("owner", [weights, membership, learners, keeper, children])
def test_what_a_thread_fails_with_is_raised_by_the_next_call_of_its_owner(owner: Any, tmp_path: Path) -> None:
    for call in owner(tmp_path):

        def fails(call: Callable[[], Any] = call) -> bool:
            try:
                call()
            except RuntimeError as error:
                return "a thread has failed" in str(error)
            return False

        until(fails)


def test_a_thread_that_ends_is_no_failure() -> None:
    thread = Worker(lambda: None, "short")
    thread.join()
    thread.check()
    assert thread.trouble == ""


def begun(code: str, folder: Path, *arguments: str | Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", code, *arguments, "--host", "127.0.0.1", "--parent", os.getpid()]
    return subprocess.Popen([str(word) for word in command], stderr=(folder / "log").open("wb"))


@pytest.mark.parametrize("thread", ["poll", "sweep", "election"])
def test_a_thread_that_fails_ends_the_coordinator(thread: str, tmp_path: Path) -> None:
    with begun(COORDINATOR, tmp_path, thread, "--attempt", tmp_path, "--shards", "1") as process:
        assert process.wait(60) == 1
    assert "a thread has failed" in (tmp_path / "log").read_text()
