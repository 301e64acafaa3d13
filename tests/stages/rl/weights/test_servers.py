"""Weights servers and relays, as processes."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import flight

from stages.rl.weights.buffers import is_read
from stages.rl.weights.pieces import Order, Outline
from stages.rl.weights.pull import Failed, Refused, Replaced, outline_of, pull, traffic
from tests.stages.rl.weights.conftest import Server, Start, until

Publish = Callable[..., Outline]
PIECE = 2**20


def fetched(server: Server, outline: Outline, supernode: str = "home") -> bytes:
    data = bytearray(outline.num_bytes)

    def put(index: int, piece: memoryview) -> None:
        data[outline.span(index)] = piece

    pull(server.caller, outline_of(server.caller, outline.digest), 0, put, "me", supernode)
    return bytes(data)


def together(work: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Stalled:
    """A reader that takes nothing of what it has asked for."""

    def __init__(self, server: Server, outline: Outline, supernode: str = "home") -> None:
        order = Order(digest=outline.digest, first=0, end=len(outline), supernode=supernode)
        self._client = server.endpoint.connect()
        self.reader = self._client.do_get(flight.Ticket(order.model_dump_json().encode()), server.endpoint.options)


def break_piece(folder: Path, outline: Outline, index: int) -> Callable[[], None]:
    """Turn a bit of it; returns what mends it."""
    path, place = folder / outline.digest, outline.span(index).start
    data = path.read_bytes()

    def write(byte: int) -> None:
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), bytes([byte]), place)

    write(data[place] ^ 1)
    return lambda: write(data[place])


def test_each_of_eight_supernodes_gets_each_version_once_however_many_members_ask(
    start: Start, published: Publish, tmp_path: Path
) -> None:
    versions, root = [published(1), published(2)], start(tmp_path / "published")
    relays = [start(root.announced, f"s{number}") for number in range(8)]
    for one in versions:
        found: list[bytes] = []
        together(
            [
                lambda n=n, one=one, found=found: found.append(fetched(relays[n % 8], one, f"s{n % 8}"))
                for n in range(40)
            ]
        )
        assert found == [random.Random(one.version).randbytes(10_000)] * 40
    each = {f"s{number}": 10_000 for number in range(8)}
    assert traffic(root.caller).crossed == {1: each, 2: each}
    assert all(traffic(relay.caller).crossed == {} for relay in relays)


def test_what_the_learners_own_supernode_gets_has_crossed_nothing(
    start: Start, published: Publish, tmp_path: Path
) -> None:
    one, root = published(1), start(tmp_path / "published")
    assert fetched(root, one) == random.Random(1).randbytes(10_000)
    assert traffic(root.caller).crossed == {}


def test_root_and_relay_may_be_encrypted(start: Start, published: Publish, tmp_path: Path) -> None:
    one, root = published(1), start(tmp_path / "published", tls=True)
    relay = start(root.announced, "s1", tls=True)
    assert relay.endpoint.location.startswith("grpc+tls://")
    assert fetched(relay, one) == random.Random(1).randbytes(10_000)


@pytest.mark.parametrize("relayed", [False, True])
def test_a_version_that_was_replaced_is_answered_so_and_the_newer_one_is_there(
    start: Start, published: Publish, tmp_path: Path, relayed: bool
) -> None:
    one, root = published(1), start(tmp_path / "published")
    server = start(root.announced, "s1") if relayed else root
    two = published(2, replaces=one)
    with pytest.raises(Replaced, match="newer"):
        fetched(server, one)
    assert fetched(server, two) == random.Random(2).randbytes(10_000)


def test_a_version_that_is_replaced_in_the_middle_is_answered_so_and_its_memory_is_free(
    start: Start, published: Publish, tmp_path: Path
) -> None:
    one, root = published(1, 64 * PIECE, piece=PIECE), start(tmp_path / "published")
    slow = Stalled(root, one)
    with (tmp_path / "published" / one.digest).open("rb") as file:
        published(2, replaces=one)
        assert os.fstat(file.fileno()).st_size == 0
    with pytest.raises(flight.FlightServerError, match="newer"):
        slow.reader.read_all()


def test_relays_keep_the_last_two_versions(start: Start, published: Publish, tmp_path: Path) -> None:
    versions, root = [published(version) for version in range(4)], start(tmp_path / "published")
    relay = start(root.announced, "s1")
    for one in versions:
        fetched(relay, one)
    assert traffic(relay.caller).kept == {one.digest: one.version for one in versions[2:]}


def test_a_relay_hands_pieces_on_before_it_has_all_and_refuses_a_corrupted_one(
    start: Start, published: Publish, tmp_path: Path
) -> None:
    one, root = published(1), start(tmp_path / "published")
    mend = break_piece(tmp_path / "published", one, 6)
    relay, got = start(root.announced, "s1"), []
    member = threading.Thread(target=pull, args=(relay.caller, one, 0, lambda index, _: got.append(index)))
    member.start()
    until(lambda: traffic(relay.caller).refused > 1)
    until(lambda: got == [0, 1, 2, 3, 4, 5])
    with pytest.raises(Refused, match="piece 6 of version 1"):
        fetched(root, one)
    mend()
    member.join()
    assert got == list(range(10))
    whole = [order for order in traffic(root.caller).crossed[1].items()]
    assert whole[0][1] >= 10_000 + 1000  # the broken piece has crossed more than once, and is counted


def test_a_root_that_is_replaced_is_found_again_by_its_relays(start: Start, published: Publish, tmp_path: Path) -> None:
    one, root = published(1), start(tmp_path / "published", name="root")
    mend = break_piece(tmp_path / "published", one, 6)
    relay, got = start(root.announced, "s1"), []
    member = threading.Thread(target=pull, args=(relay.caller, one, 0, lambda index, _: got.append(index)))
    member.start()
    until(lambda: len(got) == 6)
    root.process.kill()
    root.process.wait()
    mend()
    root = start(tmp_path / "published", name="root")
    member.join()
    assert got == list(range(10))
    assert traffic(root.caller).crossed == {1: {"s1": 4000}}  # the pieces that were missing


def test_a_server_that_is_gone_or_stands_still_is_a_failure(start: Start, published: Publish, tmp_path: Path) -> None:
    one, root = published(1), start(tmp_path / "published")
    os.kill(root.process.pid, signal.SIGSTOP)
    with pytest.raises(Failed):
        pull(root.caller, one, 0, lambda *_: None, seconds=0.5)
    root.process.kill()
    root.process.wait()
    with pytest.raises(Failed):
        fetched(root, one)


def test_readers_that_stall_hold_up_nobody_and_take_no_memory(start: Start, published: Publish, tmp_path: Path) -> None:
    one, root = published(1, 64 * PIECE, piece=PIECE), start(tmp_path / "published")
    relay = start(root.announced, "s1")
    slow = [Stalled(relay, one) for _ in range(20)]
    expected = random.Random(1).randbytes(64 * PIECE)
    assert fetched(relay, one, "s1") == expected
    status = Path(f"/proc/{relay.process.pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found and int(found[1]) < 300 * 1024, "20 readers x 64 MiB would be more"
    assert traffic(root.caller).crossed == {1: {"s1": one.num_bytes}}
    for one_of_them in slow:
        one_of_them.reader.cancel()


MEMBER = """
import sys
from pathlib import Path
from data.transport.client import Caller
from stages.rl.weights.pull import outline_of, pull

caller = Caller(Path(sys.argv[1]))
def put(index, piece):
    print(index, flush=True)
    sys.stdin.read()
pull(caller, outline_of(caller, sys.argv[2]), 0, put)
"""


def test_a_member_that_dies_in_the_middle_costs_the_others_nothing(
    start: Start, published: Publish, tmp_path: Path
) -> None:
    one, root = published(1, 64 * PIECE, piece=PIECE), start(tmp_path / "published")
    relay = start(root.announced, "s1")
    command = [sys.executable, "-c", MEMBER, str(relay.announced), one.digest]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as member:
        assert member.stdout
        assert member.stdout.readline() == b"0\n"  # it has asked first, and so begun the relay's own fetch
        member.kill()
    assert fetched(relay, one, "s1") == random.Random(1).randbytes(64 * PIECE)
    assert traffic(root.caller).crossed == {1: {"s1": one.num_bytes}}


def test_readers_whose_nodes_vanish_keep_neither_a_thread_nor_a_version_beyond_their_deadline(
    start: Start, published: Publish, tmp_path: Path
) -> None:
    one, root = published(1, 64 * PIECE, piece=PIECE), start(tmp_path / "published")
    fetched(root, one)
    tasks = Path(f"/proc/{root.process.pid}/task")
    before = len(list(tasks.iterdir()))
    program = MEMBER.replace("0, put)", "0, put, seconds=10.0)")
    command = [sys.executable, "-c", program, str(root.announced), one.digest]
    members = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for member in members:
            assert member.stdout and member.stdout.readline() == b"0\n"
            member.send_signal(signal.SIGSTOP)  # it neither reads nor hangs up: so a node that has vanished looks
        until(lambda: not is_read(tmp_path / "published" / one.digest), 60)
        until(lambda: len(list(tasks.iterdir())) <= before + 2, 60)
    finally:
        for member in members:
            member.kill()
            member.wait()
    assert fetched(root, one) == random.Random(1).randbytes(64 * PIECE)


def test_a_root_that_was_started_anew_says_that_it_counts_from_zero(
    start: Start, published: Publish, tmp_path: Path
) -> None:
    one, root = published(1), start(tmp_path / "published", name="root")
    fetched(root, one, "s1")
    before = traffic(root.caller)
    assert before.crossed == {1: {"s1": one.num_bytes}} and before.start == root.endpoint.start
    root.process.kill()
    root.process.wait()
    root = start(tmp_path / "published", name="root")
    after = traffic(root.caller)
    assert after.crossed == {} and after.start not in ("", before.start)


def test_a_server_ends_with_its_parent_and_starts_without_torch(published: Publish, tmp_path: Path) -> None:
    code = f"""
import subprocess, sys, os, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-m", "stages.rl.weights", "--announce", "{tmp_path}/a.json", "--host",
    "127.0.0.1", "--parent", str(os.getpid()), "--folder", "{tmp_path}/published"])
while not Path("{tmp_path}/a.json").exists():
    time.sleep(0.01)
print(child.pid, Path(f"/proc/{{child.pid}}/maps").read_text().count("libtorch"))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    child, torch = map(int, said.split())
    assert torch == 0
    until(lambda: not Path(f"/proc/{child}").exists())
