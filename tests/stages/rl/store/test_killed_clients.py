"""Actors that are killed in the middle of a put."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from data.trajectories import Trajectories
from stages.rl.store.client import ShardClient
from tests.stages.rl.store.conftest import SECONDS, Shards, lease, played

CLIENT = """
import sys, time
from pathlib import Path
from data.transport.trajectories import batches
from stages.rl.store import client
from tests.stages.rl.store.conftest import lease, played

def half(group):
    for batch in batches(group):
        yield batch.slice(0, max(1, batch.num_rows // 2))
        print("half", flush=True)
        time.sleep(1000)

client.batches = half
client.ShardClient(Path(sys.argv[1])).put(lease(0), played(0), True, "killed")
"""


def same(one: Trajectories, other: Trajectories) -> bool:
    return one.tokens.tolist() == other.tokens.tolist() and one.rewards.tolist() == other.rewards.tolist()


def put_half(shards: Shards, how: signal.Signals) -> None:
    """An actor sends half of a group, and is killed or vanishes."""
    announced = shards.folder / "endpoints" / "shard-0000.json"
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", CLIENT, str(announced)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout and process.stdout.readline() == b"half\n"
        process.send_signal(how)
        if how == signal.SIGKILL:
            process.wait()
        else:
            assert shards.client().ready() == []
            process.kill()


def threads(shards: Shards) -> int:
    return len(list(Path(f"/proc/{shards.processes[0].pid}/task").iterdir()))


def test_of_a_client_killed_in_the_middle_of_a_put_nothing_is_kept_and_the_group_comes_whole_from_another(
    shards: Shards,
) -> None:
    client: ShardClient = shards.begin(num_bytes=2**12)  # room for a few groups alone: half of one must not stay there
    client.restore(0, (), {})
    for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
        put_half(shards, how)
        assert client.ready() == [] and client.begun(0) is None
    assert client.inventory().num_bytes == 0
    journalled = [path for path in shards.segments() if path.suffix == ".h5"]
    assert journalled == []
    assert client.put(lease(0), played(0), True, "another") == "kept"
    assert [(one.position, one.samples) for one in client.ready()] == [(0, 2)]
    assert same(client.take([(0, 0)]), played(0))
    shards.kill()  # nor is it there after a restart
    client = shards.begin(num_bytes=2**12)
    assert [one.position for one in client.restore(0, (), {}).shelved] == [0]


def test_clients_that_die_leave_no_thread_in_the_shard(shards: Shards) -> None:
    client = shards.begin()
    client.restore(0, (), {})
    for _ in range(3):
        put_half(shards, signal.SIGKILL)
    before = threads(shards)
    for _ in range(8):
        put_half(shards, signal.SIGKILL)
    end = time.monotonic() + SECONDS
    while threads(shards) > before + 4:
        assert time.monotonic() < end, "threads are left"
        time.sleep(0.1)
