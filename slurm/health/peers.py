"""Whether nodes can connect, see each other's files and locks, and have clocks that agree.

What one asks of another is done at once, so every time is measured on one clock.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm.health.files import LOCKS, is_locked, judge_clock
from slurm.health.finding import Finding
from slurm.health.serve import CONNECT_SECONDS, Connection, Peer

VISIBLE_SECONDS = 60.0
"""NFS shows a new file after its attribute cache has expired: 60 s at most by default (acdirmax of nfs(5))."""
SLOW_VISIBLE_SECONDS = 30.0
PINGS = 10
CONNECTIONS = 16
"""At once."""


def check_connect(node: str, peers: list[Peer]) -> list[Finding]:
    """Each peer can be connected to by the name that Slurm gives, and by the address of the interface."""
    by_name = _refusals([(peer.node, peer) for peer in peers])
    found = [
        _connects(
            "connect by name", node, by_name, "make the names of all nodes resolve on all, or set slurm.interface"
        )
    ]
    if any(peer.address for peer in peers):
        by_address = _refusals([(peer.host, peer) for peer in peers])
        found.append(
            _connects("connect by interface", node, by_address, "name another slurm.interface, or open the firewall")
        )
    return found


def _refusals(ends: list[tuple[str, Peer]]) -> list[str]:
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return list(pool.map(lambda end: _refusal(*end), ends))


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
