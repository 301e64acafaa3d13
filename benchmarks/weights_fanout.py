"""Seconds until the last of 64 actors has new weights, against the first: 1 learner, 8 relays, each in a supernode.

Servers and relays are the real ones, processes each; actors are threads of a few processes, which fetch and check all
bytes and keep none. All ask at once. On one machine, all share its cores and its loopback, whose own rate is beside it.
"""

import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

from data.transport.client import Caller
from stages.rl.weights.buffers import Room, drop, keep
from stages.rl.weights.pieces import Outline, outline
from stages.rl.weights.pull import outline_of, pull, traffic

RELAYS, ACTORS, PROCESSES = 8, 64, 4
SIZES = (2**20, 2**26, 2**28)
"""Bytes of a version. The figure is the largest ratio of all."""
ROUNDS = 3
LOOPBACK_BYTES = 2**29


class Fanout(NamedTuple):
    """One version on its way to all actors."""

    num_bytes: int
    first: float
    """Seconds until the first actor had all of it."""
    last: float
    crossed: set[int]
    """Bytes that went to each of the supernodes."""

    @property
    def rate(self) -> float:
        """Bytes a second over all links: to the relays, and from them to the actors."""
        return (RELAYS + ACTORS) * self.num_bytes / self.last


def measure() -> dict[str, str | float]:
    """The best of `ROUNDS` of each size; the worst of these ratios."""
    limit = loopback()
    print(f"loopback alone: {limit / 1e9:.2f} GB/s")
    best: list[Fanout] = []
    for num_bytes in SIZES:
        rounds = fanouts(num_bytes)
        assert all(found.crossed == {num_bytes} for found in rounds), "a version crosses to each supernode once"
        best.append(min(rounds, key=lambda found: found.last / found.first))
        ratio = best[-1].last / best[-1].first
        share = best[-1].rate / limit
        print(f"{num_bytes:>11,} bytes: first {best[-1].first:.3f} s, last {best[-1].last:.3f} s ({ratio:.2f} x), ")
        print(f"             {best[-1].rate / 1e9:.2f} GB/s over all links, {share:.0%} of the loopback")
    worst = max(best, key=lambda found: found.last / found.first)
    ratio = worst.last / worst.first
    return {"name": "weights_fanout", "value": worst.last, "unit": "s", "baseline": worst.first, "ratio": ratio}


def fanouts(num_bytes: int) -> list[Fanout]:
    """Versions of so many bytes, one after another, through the same servers."""
    with tempfile.TemporaryDirectory() as folder:
        disk, room = Path(folder), Room(2 * num_bytes, Path(folder) / "published")
        servers = [_start(disk / "root.json", "home", ["--folder", room.folder])]
        source = ["--source", disk / "root.json"]
        servers += [
            _start(disk / f"{number}.json", f"s{number}", ["--folder", disk / f"{number}", *source])
            for number in range(RELAYS)
        ]
        announced = [disk / f"{number}.json" for number in range(RELAYS)]
        for path in announced:
            while not path.exists():
                time.sleep(0.01)
        root = Caller(disk / "root.json")
        found: list[Fanout] = []
        for version in range(ROUNDS):
            outline = _publish(room, num_bytes, version)
            seconds = _fetch(announced, outline.digest)
            crossed = set(traffic(root).crossed[version].values())
            found.append(Fanout(num_bytes, min(seconds), max(seconds), crossed))
        for server in servers:
            server.terminate()
            server.wait()
        room.close()
    return found


def loopback() -> float:
    """Bytes a second of one plain TCP connection to this machine itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server,))
        sender.start()
        buffer, left = bytearray(2**22), LOOPBACK_BYTES
        with socket.create_connection(server.getsockname()) as receiver:
            begin = time.perf_counter()
            while left:
                left -= receiver.recv_into(buffer)
        sender.join()
        return LOOPBACK_BYTES / (time.perf_counter() - begin)


def _send(server: socket.socket) -> None:
    data = bytes(2**22)
    with server.accept()[0] as connection:
        for _ in range(LOOPBACK_BYTES // len(data)):
            connection.sendall(data)


def _start(announced: Path, supernode: str, arguments: list[str | Path]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stages.rl.weights", "--announce", announced, "--host", "127.0.0.1"]
    command += ["--parent", os.getpid(), "--supernode", supernode, *arguments]
    return subprocess.Popen([str(word) for word in command])


def _publish(room: Room, num_bytes: int, version: int) -> Outline:
    for path in room.folder.glob("[0-9a-f]*"):
        drop(path)  # one version is enough here
    path = room.make("new", num_bytes)
    with path.open("r+b") as file:
        while file.tell() < num_bytes:
            file.write(os.urandom(2**20))
    found = outline(memoryview(path.read_bytes()), version)
    keep(path, found)
    return found


def _fetch(announced: list[Path], digest: str) -> list[float]:
    """Seconds of each actor, from the moment at which all may begin."""
    spawn = multiprocessing.get_context("spawn")
    barrier, queue = spawn.Barrier(ACTORS), spawn.SimpleQueue()
    processes = [
        spawn.Process(target=_actors, args=(announced, digest, range(first, ACTORS, PROCESSES), barrier, queue))
        for first in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    times = [queue.get() for _ in range(ACTORS)]
    for process in processes:
        process.join()
    begin = min(began for began, _ in times)
    return [ended - begin for _, ended in times]


def _actors(
    announced: list[Path], digest: str, numbers: range, barrier: Barrier, queue: "SimpleQueue[tuple[float, float]]"
) -> None:
    def fetch(number: int) -> None:
        caller, supernode = Caller(announced[number % RELAYS]), f"s{number % RELAYS}"
        traffic(caller)  # connected, as an actor is that has fetched before
        barrier.wait()
        began = time.time()
        pull(caller, outline_of(caller, digest), 0, lambda *_: None, f"actor-{number}", supernode)
        queue.put((began, time.time()))

    threads = [threading.Thread(target=fetch, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
