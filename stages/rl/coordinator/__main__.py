"""`python -m stages.rl.coordinator`: the coordinator's process. It ends with the one that started it."""

import argparse
import os
import secrets
import time
from pathlib import Path

from data.transport.endpoint import Endpoint
from stages.rl.config import AsynchronousConfig
from stages.rl.coordinator.coordinator import Coordinator
from stages.rl.coordinator.server import CoordinatorServer
from stages.rl.coordinator.table import read_table
from stages.rl.store.client import ShardClient

PARENT_SECONDS = 0.5
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
    given = parser.parse_args()
    token, start = secrets.token_hex(32), secrets.token_hex(4)
    before = read_table(given.attempt)
    coordinator = Coordinator(given.config, given.shards, given.supernode, start, before, time.time())
    server = CoordinatorServer(f"grpc://{given.host}:0", token, coordinator)
    endpoints = given.attempt / "endpoints"
    shards = [ShardClient(endpoints / f"shard-{number:04d}.json", SHARD_SECONDS) for number in range(given.shards)]
    server.look_after(given.attempt, [shard.inventory for shard in shards])
    Endpoint(given.host, server.port, token).announce(endpoints / "coordinator.json")
    while os.getppid() == given.parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
