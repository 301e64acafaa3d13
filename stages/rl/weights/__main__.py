"""`python -m stages.rl.weights`: the learner's weights server, or a relay. It ends with the process that started it."""

import argparse
import os
import signal
import threading
from pathlib import Path

from data.transport.server import PARENT_SECONDS, threads_end_the_process
from stages.rl.weights.copies import FolderCopies, RelayedCopies
from stages.rl.weights.server import WeightsServer


def main() -> None:
    """Listen, announce, serve."""
    parser = argparse.ArgumentParser(prog="python -m stages.rl.weights")
    parser.add_argument("--announce", type=Path, required=True, help="file that tells address and token")
    parser.add_argument("--host", required=True, help="address at which other nodes reach this one")
    parser.add_argument("--parent", type=int, required=True, help="process with which it ends")
    parser.add_argument("--supernode", default="", help="of this node")
    parser.add_argument("--folder", type=Path, required=True, help="where the versions are; that of a relay alone")
    parser.add_argument("--source", type=Path, help="announcement of the server from which a relay gets its weights")
    parser.add_argument("--tls", action="store_true", help="encrypt what goes over its connections")
    given = parser.parse_args()
    threads_end_the_process()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    relayed = RelayedCopies(given.source, given.folder, given.supernode) if given.source else None
    copies = relayed or FolderCopies(given.folder)
    server = WeightsServer(given.host, copies, given.supernode, tls=given.tls)
    server.endpoint.announce(given.announce)
    while os.getppid() == given.parent and not ended.wait(PARENT_SECONDS):
        pass
    if relayed:
        relayed.close()
    os._exit(0)  # readers may be in the middle


if __name__ == "__main__":
    main()
