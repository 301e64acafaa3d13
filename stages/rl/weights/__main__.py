"""`python -m stages.rl.weights`: the learner's weights server, or a relay. It ends with the process that started it."""

import argparse
import os
import secrets
import time
from pathlib import Path

from data.transport.endpoint import Endpoint
from stages.rl.weights.copies import FolderCopies, RelayedCopies
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
    relayed = RelayedCopies(given.source, given.folder, given.supernode) if given.source else None
    token = secrets.token_hex(32)
    server = WeightsServer(f"grpc://{given.host}:0", token, relayed or FolderCopies(given.folder), given.supernode)
    Endpoint(given.host, server.port, token).announce(given.announce)
    while os.getppid() == given.parent:
        time.sleep(PARENT_SECONDS)
    if relayed:
        relayed.close()
    os._exit(1)


if __name__ == "__main__":
    main()
