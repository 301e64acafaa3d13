"""A node as its peers reach it: each serves the others on a port of its own; who asks has to know its token."""

import fcntl
import json
import os
import secrets
import socket
import socketserver
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import BaseModel, ValidationError

from checkpoints.manifest import write_json

CONNECT_SECONDS = 5.0
LINE_BYTES = 4096


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


class Wish(BaseModel):
    """What one node asks of another: a line of JSON."""

    token: str
    do: Literal["time", "write", "lock"]
    name: str = ""


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
        while line := self.rfile.readline(LINE_BYTES):
            try:
                asked = Wish.model_validate_json(line)
            except ValidationError:  # a stranger
                return
            if not secrets.compare_digest(asked.token, self.server.token):
                return
            self.wfile.write(json.dumps(self.answer(asked.do, asked.name)).encode() + b"\n")

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

    def ask(self, wish: Literal["time", "write", "lock"], name: str = "") -> float:
        """Have the peer do it, and return its clock afterwards."""
        self.stream.write(Wish(token=self.token, do=wish, name=name).model_dump_json().encode() + b"\n")
        self.stream.flush()
        line = self.stream.readline()
        if not line:
            raise ConnectionError("the peer hung up")
        return float(json.loads(line)["time"])

    def close(self) -> None:
        """Hang up."""
        self.stream.close()
        self.socket.close()
