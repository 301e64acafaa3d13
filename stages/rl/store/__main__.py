"""`python -m stages.rl.store`: one shard. It ends with the process that started it, and says nothing until restored."""

import argparse
import secrets
import sys
from pathlib import Path

from data.transport.endpoint import Endpoint
from data.transport.server import serve
from stages.rl.store.journal import Journal
from stages.rl.store.server import ShardServer
from stages.rl.store.shelf import Shelf

SWITCH_SECONDS = 2e-4
"""A thread that comes back from the disk gets Python's lock after so long, in place of 5 ms; it needs it briefly."""


def main() -> None:
    """Listen, announce, serve."""
    parser = argparse.ArgumentParser(prog="python -m stages.rl.store")
    parser.add_argument("--announce", type=Path, required=True, help="file that tells address and token")
    parser.add_argument("--parent", type=int, required=True, help="process with which it ends")
    parser.add_argument("--host", required=True, help="address at which other nodes reach this one")
    parser.add_argument("--folder", type=Path, required=True, help="of the attempt; the journal is below it")
    parser.add_argument("--shard", type=int, required=True, help="which one this is, from 0")
    parser.add_argument("--shards", type=int, required=True, help="how many there are")
    parser.add_argument("--bytes", type=int, required=True, help="of groups, until no more are taken in")
    parser.add_argument("--terms", required=True, help="names of the reward's terms, with commas between them")
    parser.add_argument("--environment-hash", default="", help="is written into the journal")
    parser.add_argument("--tls", action="store_true", help="encrypt")
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_SECONDS)
    attributes = {"terms": given.terms, "environment_hash": given.environment_hash}
    journal = Journal(given.folder, given.shard, given.shards, secrets.token_hex(4), attributes)
    server = ShardServer(
        given.host, Shelf(given.bytes), journal, len(given.terms.split(",")), lambda: is_current(), tls=given.tls
    )

    def is_current() -> bool:
        return given.announce.exists() and Endpoint.read(given.announce).start == server.endpoint.start

    server.endpoint.announce(given.announce)
    # From here on no earlier process of this shard acknowledges anything, so what it has half written may go.
    journal.remove_torn()
    _remove_higher(given.announce.parent, given.shards)
    serve(server, given.announce, given.parent)


def _remove_higher(endpoints: Path, shards: int) -> None:
    """Announcements of shards that there are no more; without them their processes acknowledge nothing."""
    for path in endpoints.glob("shard-*.json"):
        if int(path.stem.split("-")[1]) >= shards:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
