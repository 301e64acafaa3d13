"""Whether nodes can connect, see each other's files and locks, and have clocks that agree.

Each node serves its peers on a port of its own. What one asks of another is done at once, so every time is measured
on one clock.
"""

import fcntl
import json
import os
import socket
import socketserver
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from checkpoints.manifest import write_json
from slurm.health.files import LOCKS, is_locked, judge_clock
from slurm.health.finding import Finding

CONNECT_SECONDS = 5.0
VISIBLE_SECONDS = 60.0
"""NFS shows a new file after its attribute cache has expired: 60 s at most by default (acdirmax of nfs(5))."""
SLOW_VISIBLE_SECONDS = 30.0
PINGS = 10


@dataclass(frozen=True)
class Peer:
    """How a node is reached, as it says itself in `hello-NODE.json`, which only the owner can read."""

    node: str
    address: str | None
    """Of the configured interface; None without one."""
    port: int
    token: str

    @property
    def host(self) -> str:
        """Where the trainer's ranks would look for it."""
        return self.address or self.node


def address_of(interface: str | None) -> str | None:
    """This node's IPv4 address on an interface, of several the first; None when it has none there."""
    found = psutil.net_if_addrs().get((interface or "").split(",")[0].strip(), [])
    return next((each.address for each in found if each.family == socket.AF_INET), None)


def read(path: Path) -> Any:
    """A JSON file of another node."""
    return json.loads(path.read_bytes())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    address_family = socket.AF_INET

    def __init__(self, folder: Path, token: str) -> None:
        super().__init__(("", 0), _Handler)
        self.folder, self.token = folder, token


class _Handler(socketserver.StreamRequestHandler):
    """One connection of a peer. A lock is held until the connection ends."""

    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def handle(self) -> None:
        for line in self.rfile:
            asked = json.loads(line)
            if asked.get("token") != self.server.token:
                return
            self.wfile.write(json.dumps(self.answer(asked["do"], asked.get("name", ""))).encode() + b"\n")

    def answer(self, wish: str, name: str) -> dict[str, Any]:
        if wish == "write":
            write_json(self.server.folder / name, {})
        if wish == "lock":
            self.held = (self.server.folder / name).open("a")
            fcntl.flock(self.held, fcntl.LOCK_EX)
        return {"time": time.time()}

    def finish(self) -> None:
        if hasattr(self, "held"):
            self.held.close()


def serve(folder: Path, token: str) -> int:
    """Serve the peers from a child process that ends with this one; returns the port."""
    server, parent = _Server(folder, token), os.getpid()
    if os.fork() == 0:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(0)
    port = int(server.server_address[1])
    server.server_close()
    return port


class Connection:
    """A connection to a peer. Raises OSError when it cannot be made or is lost."""

    def __init__(self, host: str, peer: Peer) -> None:
        self.socket = socket.create_connection((host, peer.port), timeout=CONNECT_SECONDS)
        self.stream = self.socket.makefile("rwb")
        self.token = peer.token

    def ask(self, wish: str, name: str = "") -> float:
        """Have the peer do it, and return its clock afterwards."""
        self.stream.write(json.dumps({"token": self.token, "do": wish, "name": name}).encode() + b"\n")
        self.stream.flush()
        line = self.stream.readline()
        if not line:
            raise ConnectionError("the peer hung up")
        return float(json.loads(line)["time"])

    def close(self) -> None:
        """Hang up."""
        self.stream.close()
        self.socket.close()


def check_connect(node: str, peers: list[Peer]) -> list[Finding]:
    """Each peer can be connected to by the name that Slurm gives, and by the address of the interface."""
    by_name = [_refusal(peer.node, peer) for peer in peers]
    found = [
        _connects(
            "connect by name", node, by_name, "make the names of all nodes resolve on all, or set slurm.interface"
        )
    ]
    if any(peer.address for peer in peers):
        by_address = [_refusal(peer.host, peer) for peer in peers]
        found.append(
            _connects("connect by interface", node, by_address, "name another slurm.interface, or open the firewall")
        )
    return found


def _refusal(host: str, peer: Peer) -> str:
    try:
        Connection(host, peer).close()
    except OSError as error:
        return f"{peer.node} at {host}:{peer.port}: {error}"
    return ""


def _connects(check: str, node: str, refusals: list[str], way_out: str) -> Finding:
    refused = [refusal for refusal in refusals if refusal]
    if refused:
        return Finding(check, node, "bad", "; ".join(refused), way_out)
    return Finding(check, node, "ok", f"to {len(refusals)} nodes, any free port")


def check_clock(node: str, first: Peer) -> list[Finding]:
    """This node's clock against the first node's, from the quickest of some round trips."""
    connection = Connection(first.host, first)
    trips: list[tuple[float, float]] = []
    for _ in range(PINGS):
        before = time.time()
        theirs = connection.ask("time")
        after = time.time()
        trips.append(((after - before) / 2, (before + after) / 2 - theirs))
    connection.close()
    uncertainty, skew = min(trips)
    return [judge_clock(f"clock against {first.node}", node, skew, uncertainty)]


def check_visible(folder: Path, node: str, peer: Peer) -> list[Finding]:
    """Seconds until a file that a peer has committed is seen here, by its name and in the folder's list."""
    name = f"seen-by-{node}"
    list(folder.iterdir())  # fills the caches that a new file has to get through
    (folder / name).exists()
    connection = Connection(peer.host, peer)
    connection.socket.settimeout(CONNECT_SECONDS + VISIBLE_SECONDS)
    connection.ask("write", name)
    connection.close()
    begin = time.monotonic()
    while not ((folder / name).exists() and folder / name in folder.iterdir()):
        if time.monotonic() - begin > VISIBLE_SECONDS:
            measured = f"a file of {peer.node} is not seen after {VISIBLE_SECONDS:g} s"
            return [Finding("visible files", node, "bad", measured, "is it one file system on all nodes?")]
        time.sleep(0.01)
    seconds = time.monotonic() - begin
    measured = f"a file of {peer.node} after {seconds:.2f} s, limit {SLOW_VISIBLE_SECONDS:g} s"
    if seconds > SLOW_VISIBLE_SECONDS:
        return [Finding("visible files", node, "bad", measured, "ask for a shorter attribute cache (NFS: acdirmax)")]
    return [Finding("visible files", node, "ok", measured)]


def check_shared_lock(folder: Path, node: str, peer: Peer) -> list[Finding]:
    """A lock that a peer holds keeps this node out, and is free once the peer lets go."""
    check, name = "locks between nodes", f"locked-for-{node}"
    path = folder / name
    path.touch()
    connection = Connection(peer.host, peer)
    connection.ask("lock", name)
    refused = is_locked(path)
    connection.close()
    if not refused:
        measured = f"{peer.node} held a lock, and this node got it too"
        return [Finding(check, node, "bad", measured, LOCKS)]
    end = time.monotonic() + CONNECT_SECONDS
    while is_locked(path):
        if time.monotonic() > end:
            return [Finding(check, node, "bad", f"the lock of {peer.node} outlived its holder", LOCKS)]
        time.sleep(0.01)
    return [Finding(check, node, "ok", f"flock excludes between this node and {peer.node}")]
