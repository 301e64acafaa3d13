"""Weights servers and relays, as processes."""

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.rl.weights.pieces import Outline
from stages.rl.weights.pull import Failed, Replaced, outline_of, pull, traffic

Publish = Callable[..., Outline]


def fetched(server, outline: Outline, supernode: str = "home") -> bytes:
    data = bytearray(outline.num_bytes)

    def put(index: int, piece: memoryview) -> None:
        data[outline.span(index)] = piece

    pull(server.endpoint, outline_of(server.endpoint, outline.digest), 0, put, "me", supernode)
    return bytes(data)


def test_each_of_eight_supernodes_gets_a_version_once_each_however_many_members_ask(start, published, tmp_path: Path):
    one, root = published(1), start(tmp_path / "published")
    relays = [start(root.announced, f"s{number}") for number in range(8)]
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda n=number: found.append(fetched(relays[n % 8], one, f"s{n % 8}")))
        for number in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [random.Random(1).randbytes(10_000)] * 40
    assert traffic(root.endpoint).crossed == {1: {f"s{number}": 10_000 for number in range(8)}}
    assert all(traffic(relay.endpoint).crossed == {} for relay in relays)


def test_a_version_that_was_replaced_is_answered_so(start, published, tmp_path: Path):
    one, root = published(1), start(tmp_path / "published")
    two = published(2, replaces=one)
    with pytest.raises(Replaced, match="newer"):
        fetched(root, one)
    assert fetched(root, two) == random.Random(2).randbytes(10_000)


def test_a_server_that_is_gone_is_a_failure(start, published, tmp_path: Path):
    one, root = published(1), start(tmp_path / "published")
    root.process.kill()
    root.process.wait()
    with pytest.raises(Failed):
        fetched(root, one)
