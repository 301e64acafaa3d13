"""`python -m stages.rl.weights`: the learner's weights server, or a relay. It ends with the process that started it."""

import argparse
import os
import secrets
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from data.transport.endpoint import Endpoint
from stages.rl.weights.copies import Copies, FolderCopies, RelayedCopies
from stages.rl.weights.server import WeightsServer

PARENT_SECONDS = 0.5


def main() -> None:
    """Listen, announce, serve."""
    parser = argparse.ArgumentParser(prog="python -m stages.rl.weights")
    parser.add_argument("--announce", type=Path, required=True, help="file that tells address and token")
    parser.add_argument("--host", required=True, help="address at which other nodes reach this one")
    parser.add_argument("--parent", type=int, required=True, help="process with which it ends")
    parser.add_argument("--supernode", default="", help="of this node")
    parser.add_argument("--folder", type=Path, required=True, help="where the versions are; of a relay: on disk")
    parser.add_argument("--source", type=Path, help="announcement of the server from which a relay gets its weights")
    given = parser.parse_args()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    relayed = RelayedCopies(given.source, given.folder, given.supernode) if given.source else None
    server = _listen(given.announce, given.host, relayed or FolderCopies(given.folder), given.supernode)
    Endpoint(given.host, server.port, server.token).announce(given.announce)
    while os.getppid() == given.parent and not ended.wait(PARENT_SECONDS):
        pass
    if relayed:
        relayed.close()
    os._exit(0)  # readers may be in the middle


def _listen(announced: Path, host: str, copies: Copies, supernode: str) -> WeightsServer:
    """One that was announced there before has died: the new one answers in its place, if the port is still free."""
    if announced.exists():
        before = Endpoint.read(announced)
        with suppress(pa.ArrowException, OSError):
            return WeightsServer(f"grpc://{host}:{before.port}", before.token, copies, supernode)
    return WeightsServer(f"grpc://{host}:0", secrets.token_hex(32), copies, supernode)


if __name__ == "__main__":
    main()
