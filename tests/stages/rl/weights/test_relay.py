"""The relay that an actor starts."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from data.transport.client import Caller
from stages.rl.weights.pieces import Outline
from stages.rl.weights.pull import outline_of, pull
from stages.rl.weights.relay import Relay
from tests.stages.rl.weights.conftest import Start, until

FAILS = """
from stages.rl.weights import copies
from stages.rl.weights.__main__ import main

def broken(*_, **__):
    raise MemoryError("a thread has failed")

copies.pull = broken
main()
"""


def test_an_appointed_relay_hands_weights_on_is_replaced_when_killed_and_ends_when_another_one_is_appointed(
    start: Start, published: Callable[..., Outline], tmp_path: Path
) -> None:
    one, root = published(1), start(tmp_path / "published")
    relay = Relay(root.announced, tmp_path / "actor", "a", "127.0.0.1", "s1")
    assert relay.appointed(False) is None
    until(lambda: relay.appointed(True))
    before = relay.appointed(True)
    assert before
    data = bytearray(one.num_bytes)

    def put(index: int, piece: memoryview) -> None:
        data[one.span(index)] = piece

    pull(Caller(before), outline_of(Caller(before), one.digest), 0, put)
    assert data == random.Random(1).randbytes(one.num_bytes)
    assert relay._process
    child = relay._process.pid
    os.kill(child, signal.SIGKILL)
    until(lambda: relay.appointed(True) and relay.restarts == 1)
    until(lambda: outline_of_or_none(relay, one) == one)
    relay.appointed(False)
    until(lambda: not Path(f"/proc/{child}").exists())
    assert not list((tmp_path / "actor").glob("*.json"))


def outline_of_or_none(relay: Relay, one: Outline) -> Outline | None:
    endpoint = relay.appointed(True)
    try:
        return outline_of(Caller(endpoint), one.digest) if endpoint else None
    except RuntimeError:
        return None


def test_a_thread_that_fails_ends_the_relay(start: Start, published: Callable[..., Outline], tmp_path: Path) -> None:
    one, root, announced = published(1), start(tmp_path / "published"), tmp_path / "relay.json"
    command = [sys.executable, "-c", FAILS, "--announce", announced, "--folder", tmp_path / "relay"]
    command += ["--source", root.announced, "--host", "127.0.0.1", "--parent", os.getpid()]
    with subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True) as process:
        until(announced.exists)
        outline_of(Caller(announced), one.digest)
        assert process.wait(60) == 1
        assert process.stderr and "a thread has failed" in process.stderr.read()
