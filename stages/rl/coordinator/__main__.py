"""`python -m stages.rl.coordinator`: the coordinator's process. It ends with the one that started it."""

import argparse
import os
import secrets
import threading
import time
from pathlib import Path

from data.transport.server import ends_with, serve
from stages.rl.config import AsynchronousConfig
from stages.rl.coordinator.coordinator import Coordinator
from stages.rl.coordinator.election import Election, stand
from stages.rl.coordinator.server import CoordinatorServer
from stages.rl.coordinator.table import read_table
from stages.rl.store.client import ShardClient

LOOK_SECONDS = 0.2
SHARD_SECONDS = 5.0
"""That a shard has to answer in."""


def main() -> None:
    """Listen, announce, serve."""
    parser = argparse.ArgumentParser(prog="python -m stages.rl.coordinator")
    parser.add_argument("--attempt", type=Path, required=True, help="folder of the attempt")
    parser.add_argument("--host", required=True, help="address at which other nodes reach this one")
    parser.add_argument("--parent", type=int, required=True, help="process with which it ends")
    parser.add_argument("--shards", type=int, required=True, help="number of shards")
    parser.add_argument("--supernode", default="", help="of the learner")
    parser.add_argument("--config", type=AsynchronousConfig.model_validate_json, default=AsynchronousConfig())
    parser.add_argument("--candidate", type=int, default=0, help="which of the candidates this one is")
    parser.add_argument("--candidates", type=int, default=1, help="how many there are, on nodes of the learners")
    parser.add_argument("--learners", default="", help="names this start of the learners, for all candidates")
    given = parser.parse_args()
    ends_with(given.parent)
    endpoints = given.attempt / "endpoints"
    election = stand(endpoints, given.host, given.candidate, given.candidates, given.learners)
    election.wait()
    before, start = read_table(given.attempt), secrets.token_hex(4)
    now = time.monotonic()
    coordinator = Coordinator(
        given.config, given.shards, given.supernode, start, before, now, given.learners, unix=time.time() - now
    )
    server = CoordinatorServer(given.host, coordinator, given.attempt, tls=given.config.tls)
    shards = [ShardClient(endpoints / f"shard-{number:04d}.json", SHARD_SECONDS) for number in range(given.shards)]
    server.look_after([shard.inventory for shard in shards])
    threading.Thread(target=_leads, args=(election,), name="election", daemon=True).start()
    serve(server, endpoints / "coordinator.json", given.parent)


def _leads(election: Election) -> None:
    """Another coordinator is elected when this one can't be heard; this process then ends, and stands anew."""
    while election.is_leader:
        time.sleep(LOOK_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
