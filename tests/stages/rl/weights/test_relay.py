"""The relay that an actor starts."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from data.transport.client import Caller
from stages.rl.messages import Source
from stages.rl.weights.fetch import Arriving, Weights
from stages.rl.weights.pieces import Outline
from stages.rl.weights.pull import Failed, outline_of, pull, traffic
from stages.rl.weights.relay import END_SECONDS, Relay
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
    until(lambda: relay.appointed(False) is None and relay._process is None)
    assert not list((tmp_path / "actor").glob("*.json"))


def test_a_relay_that_dies_at_once_is_started_again_after_longer_and_longer_pauses(tmp_path: Path) -> None:
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "relay-a").touch()  # no folder can be there
    relay = Relay(tmp_path / "none.json", tmp_path / "actor", "a", "no such host", "s1")
    begun: list[float] = []
    begin = relay._begin

    def noted(now: float) -> None:
        begun.append(now)
        begin(now)

    relay._begin = noted
    until(lambda: relay.appointed(True) or len(begun) == 3)
    assert begun[1] - begun[0] >= 1 and begun[2] - begun[1] >= 2 and relay.restarts == 2
    relay.close()


def test_between_two_looks_and_while_it_ends_a_relay_holds_up_no_engine(start: Start, tmp_path: Path) -> None:
    root = start(tmp_path)
    relay = Relay(root.announced, tmp_path / "actor", "a", "127.0.0.1", "s1")
    until(lambda: relay.appointed(True))
    assert relay._process
    child = relay._process.pid
    os.kill(child, signal.SIGSTOP)  # so that it does not end by itself
    began = time.process_time()
    for _ in range(1000):
        assert relay.appointed(True)
    assert time.process_time() - began < 0.2
    began = time.monotonic()
    relay.appointed(False)
    assert time.monotonic() - began < END_SECONDS / 2
    until(lambda: relay.appointed(True))  # which waits until the other one has ended
    assert not Path(f"/proc/{child}").exists() and relay.restarts == 0
    relay.close()


class Slow(Arriving):
    """Takes a while for each piece."""

    def _put(self, index: int, data: memoryview) -> None:
        time.sleep(0.01)
        super()._put(index, data)


def test_actors_whose_relay_is_killed_in_the_middle_of_their_fetches_go_on_at_the_learners_server(
    start: Start, published: Callable[..., Outline], tmp_path: Path
) -> None:
    one, root = published(1, 2**20, piece=2**12), start(tmp_path / "published")
    relay = Relay(root.announced, tmp_path / "actor", "a", "127.0.0.1", "s1")
    until(lambda: relay.appointed(True))
    endpoint = relay.appointed(True)
    assert endpoint and relay._process
    source = Source(version=1, digest=one.digest, num_bytes=one.num_bytes, endpoint=endpoint)
    actors = [Weights(root.announced, f"m{number}", "s1", patience=0.1) for number in range(4)]
    for weights in actors:
        weights._arriving = Slow(supernode="s1")
        weights.want(source)
    until(lambda: all(weights._arriving._have > 2 for weights in actors))
    until(lambda: traffic(root.caller).crossed == {1: {"s1": one.num_bytes}})  # once for all of them
    relay._process.kill()
    assert all(weights.wait(60) for weights in actors)
    expected = random.Random(1).randbytes(one.num_bytes)
    assert all(weights._arriving._buffer == expected for weights in actors)
    again = traffic(root.caller).crossed[1]["s1"] - one.num_bytes
    assert 0 < again < len(actors) * one.num_bytes, "what had come is not fetched again"
    for weights in actors:
        weights.close()
    relay.close()


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
        with suppress(Failed):  # it may end before it has answered
            outline_of(Caller(announced), one.digest)
        assert process.wait(60) == 1
        assert process.stderr and "a thread has failed" in process.stderr.read()
