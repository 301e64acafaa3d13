"""Which of the candidates is the coordinator: Raft, by pysyncobj, elects one and another when that one is gone.

Nothing but the election goes through Raft. Two may believe for a moment that they lead, when the network is cut; that
does no harm, since leases are advice.
"""

import _socket
import hashlib
import secrets
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.transport import TCPTransport

from data.transport.endpoint import Endpoint

# Its import puts a function for Windows alone in place of this one, which others need as well.
socket.inet_ntop = _socket.inet_ntop

ELECTION_SECONDS = (0.8, 1.6)
"""Without a word of the leader, until a candidate stands: drawn between the two, so that they seldom collide."""
PING_SECONDS = 0.1
FALLBACK_SECONDS = 2.0
"""A leader that hears nothing of the majority for so long leads no more."""
RECONNECT_SECONDS = 0.2
LOOK_SECONDS = 0.05
MESSAGE_BYTES = 2**20
"""Of one message of Raft, many times of what an election needs. Who announces more is hung up on."""


class _Transport(TCPTransport):
    """pysyncobj's own, which would else gather whatever a stranger sends behind the length of a message."""

    def _onNewIncomingConnection(self, conn: Any) -> None:
        super()._onNewIncomingConnection(conn)
        read = conn._TcpConnection__processRead

        def bounded() -> bool:
            more = read()
            received: bytes = conn._TcpConnection__readBuffer
            if max(len(received), int.from_bytes(received[:4], sys.byteorder)) > MESSAGE_BYTES:
                conn.disconnect()
                return False
            return more

        conn._TcpConnection__processRead = bounded


class Election:
    """One candidate, at `self_address` (host:port, whose port is bound already), and what it knows of the others."""

    def __init__(self, self_address: str, others: Sequence[str], password: str, journal: Path) -> None:
        """All candidates have one password: without it Raft's port understands nothing. `journal` keeps its vote.

        A candidate without others leads at once.
        """
        assert password, "what comes in is unpickled, so only who has the password may send it"
        self._address, self._raft = self_address, None
        if others:
            config = SyncObjConf(
                password=password, journalFile=str(journal), raftMinTimeout=ELECTION_SECONDS[0],
                raftMaxTimeout=ELECTION_SECONDS[1], appendEntriesPeriod=PING_SECONDS,
                leaderFallbackTimeout=FALLBACK_SECONDS, connectionTimeout=FALLBACK_SECONDS,
                connectionRetryTime=RECONNECT_SECONDS, bindRetryTime=RECONNECT_SECONDS, useFork=False,
            )  # fmt: skip
            self._raft = SyncObj(self_address, list(others), config, transportClass=_Transport)

    def leader(self) -> str | None:
        """The address of the one that leads, as far as this one knows."""
        if self._raft is None:
            return self._address
        status = self._status()
        # A leader that has just been elected is followed only once the majority can be heard.
        return str(status["leader"]) if status["leader"] is not None and status["has_quorum"] else None

    @property
    def is_leader(self) -> bool:
        """Whether this one leads."""
        return self.leader() == self._address

    @property
    def term(self) -> int:
        """It grows with each election."""
        return 0 if self._raft is None else int(self._status()["raft_term"])

    def wait(self) -> None:
        """Until this one leads."""
        while not self.is_leader:
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Stand no more."""
        if self._raft is not None:
            self._raft.destroy()

    def _status(self) -> dict[str, Any]:
        assert self._raft is not None
        return self._raft.getStatus()


def stand(folder: Path, host: str, number: int, candidates: int, start: str) -> Election:
    """Stand as candidate `number` of so many, at a port that is bound first, then announced in `folder`, then used.

    Waits until all have announced themselves. One that was killed comes back with the port and the vote that it had;
    `start`, one for each start of the learners, keeps the candidates of an earlier one apart.
    """
    own = _announce(_place(folder, number), host, start)
    found = [own if other == number else _read(_place(folder, other), start) for other in range(candidates)]
    while not all(found):
        time.sleep(LOOK_SECONDS)
        found = [each or _read(_place(folder, other), start) for other, each in enumerate(found)]
    endpoints = [each for each in found if each]
    addresses = [f"{each.host}:{each.port}" for each in endpoints]
    password = hashlib.sha256("".join(each.token for each in endpoints).encode()).hexdigest()
    others = [address for other, address in enumerate(addresses) if other != number]
    return Election(addresses[number], others, password, folder / f"candidate-{number}-{start}.raft")


def _announce(path: Path, host: str, start: str) -> Endpoint:
    """Where this candidate was, if it was killed, or a port of its own."""
    before = _read(path, start)
    if before is not None and before.host == host:
        _HELD.append(_hold(host, before.port))
        return before
    held = _hold(host, 0)
    _HELD.append(held)
    endpoint = Endpoint(host, held.getsockname()[1], secrets.token_hex(32), start)
    endpoint.announce(path)
    return endpoint


_HELD: list[socket.socket] = []
"""Sockets that keep the ports of this process's candidates; they never listen."""


def _hold(host: str, port: int) -> socket.socket:
    """Bind a port without listening: the system gives it to nobody else, and Raft's own socket may have it too."""
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    while True:
        try:
            held.bind((host, port))
        except OSError:  # for a moment after a kill; Raft's addresses do not change, so there is no other one
            if not port:
                raise
            time.sleep(LOOK_SECONDS)
        else:
            return held


def _place(folder: Path, number: int) -> Path:
    return folder / f"candidate-{number}.json"


def _read(path: Path, start: str) -> Endpoint | None:
    with suppress(FileNotFoundError):
        found = Endpoint.read(path)
        return found if found.start == start else None
    return None
