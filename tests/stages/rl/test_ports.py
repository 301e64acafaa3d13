"""The processes of an asynchronous run, as the learners start them, attacked through every open port."""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyarrow import flight

from data.transport.client import Caller, Unreachable
from data.transport.endpoint import Endpoint
from data.transport.server import MESSAGE_BYTES
from stages.rl.coordinator.status import Status
from stages.rl.messages import Message
from stages.rl.store.wire import Division
from stages.rl.weights.pieces import Traffic
from stages.rl.weights.relay import Relay
from tests.stages.rl.test_asynchronous import actors

LIMIT, SECONDS = 120.0, 20.0
ACTIONS = {
    "shard": ("division", "offer", "restore", "ready", "again", "done", "inventory"),
    "coordinator": ("join", "renew", "advance", "score", "status", "end"),
    "weights": ("outline", "traffic"),
    "relay": ("outline", "traffic"),
}
EASY: dict[str, tuple[str, type[Message]]] = {
    "shard": ("division", Division),
    "coordinator": ("status", Status),
    "weights": ("traffic", Traffic),
    "relay": ("traffic", Traffic),
}
"""What needs no message."""
NODES = """
import os, data.job
os.umask(0)
init = data.job.Job.__init__
def placed(self, **given):
    init(self, node=["localhost", "127.0.0.1"][given["rank"]], supernode="home", **given)
data.job.Job.__init__ = placed
"""
"""Two ranks on two nodes; and an umask that protects nothing."""
SLOW, GARBAGE = 50, (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096)
REFUSED = (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError, OSError)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "it has not come true"
        time.sleep(0.02)


@dataclass
class Run:
    """Two learners, all that they have started, and a relay as an actor starts it."""

    folder: Path
    learners: list[subprocess.Popen[bytes]]
    relay: Relay

    @property
    def servers(self) -> dict[str, Path]:
        names = ("shard-0000", "shard-0001", "coordinator", "weights")
        relay = self.folder / "actors" / "a" / "relay-a.json"
        return {name: self.folder / "endpoints" / f"{name}.json" for name in names} | {"relay-a": relay}

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        return {name: Endpoint.read(path) for name, path in self.servers.items()}

    @property
    def processes(self) -> dict[int, psutil.Process]:
        """Learners and children, the relay as well."""
        found = [psutil.Process(each.pid) for each in self.learners]
        children = [child for each in found for child in each.children()] + psutil.Process().children()
        return {each.pid: each for each in found + children}


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def attacked(request: pytest.FixtureRequest, world: Any, start: Any) -> Generator[Run]:
    tls, folder = request.param, world.attempt()
    asynchronous = world.config.rl.asynchronous.model_dump() | {"tls": tls}
    config = world.changed(mode="asynchronous", steps=2, asynchronous=asynchronous)
    learners = start(config, folder, 2, before=NODES)
    relay = Relay(folder / "endpoints" / "weights.json", folder / "actors" / "a", "a", "127.0.0.1", "far", tls=tls)
    with closing(relay):
        run = Run(folder, learners, relay)
        until(lambda: relay.appointed(True) and all(path.exists() for path in run.servers.values()))
        until(lambda: Watch(run).works() == "")
        yield run
        with actors(world, config, folder, 1):  # and it trains as if nothing had been
            assert [each.wait(LIMIT) for each in learners] == [0, 0]


@dataclass
class Watch:
    """Real clients of all servers, which go on calling."""

    run: Run
    failed: list[str] = field(default_factory=list[str])
    calls: int = 0

    def works(self) -> str:
        """Nothing when each server answers; else what is wrong."""
        try:
            for name, path in self.run.servers.items():
                action, answer = EASY[name.split("-")[0]]
                Caller(path, SECONDS).call(action, None, answer)
        except (Unreachable, ValueError, KeyError) as error:
            return f"{error!r}"
        self.calls += 1
        return ""

    def __enter__(self) -> "Watch":
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        assert self.calls > 1 and self.failed == []

    def _go_on(self) -> None:
        while not self._ended.wait(0.05):
            if said := self.works():
                self.failed.append(said)


def calls(name: str, endpoint: Endpoint, make: Callable[[], flight.FlightCallOptions]) -> Iterator[Callable[[], Any]]:
    """All that can be asked of a server."""
    client, nothing = endpoint.connect(), flight.FlightDescriptor.for_command(b"{}")
    schema = pa.schema([("x", pa.int64())])

    def put() -> None:
        writer, reader = client.do_put(nothing, schema, make())
        with suppress(pa.ArrowInvalid):
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array([1])], schema=schema))
            writer.done_writing()
        reader.read()
        writer.close()

    for action in ACTIONS[name.split("-")[0]]:
        yield lambda a=action: list(client.do_action(flight.Action(a, b"{}"), make()))
    yield lambda: list(client.do_get(flight.Ticket(b"{}"), make()))
    yield put
    yield lambda: client.do_exchange(nothing, make())[1].read_chunk()
    yield lambda: list(client.list_actions(make()))
    yield lambda: list(client.list_flights(options=make()))
    yield lambda: client.get_flight_info(nothing, make())
    yield lambda: client.get_schema(nothing, make())


def carrying(endpoint: Endpoint, token: str) -> Callable[[], flight.FlightCallOptions]:
    return lambda: replace(endpoint, token=token).within(SECONDS)


def strangers(run: Run, old: Endpoint) -> None:
    """Without a token, with those of other servers, and with that of an earlier start."""
    known = run.endpoints
    tokens = ["", "x" * 64, old.token, *(each.token for each in known.values())]
    for name, endpoint in known.items():
        makes = [carrying(endpoint, token) for token in tokens if token != endpoint.token]
        makes += [lambda: flight.FlightCallOptions(timeout=SECONDS), lambda: old.within(SECONDS)]
        makes += [lambda e=endpoint: replace(e, start=old.start).within(SECONDS)]
        for make in makes:
            for call in calls(name, endpoint, make):
                with pytest.raises(REFUSED, match="token|start"):
                    call()


def replayed(run: Run) -> None:
    for name, endpoint in run.endpoints.items():
        action, _ = EASY[name.split("-")[0]]
        once = endpoint.within(SECONDS)
        assert list(endpoint.connect().do_action(flight.Action(action, b"{}"), once))
        for call in calls(name, endpoint, lambda o=once: o):
            with pytest.raises(REFUSED, match="came before"):
                call()


def nonsense(run: Run) -> None:
    """From somebody with the token: refused in words."""
    large = b" " * (MESSAGE_BYTES + 1)
    for name, endpoint in run.endpoints.items():
        client = endpoint.connect()
        for action in ("no-such-action", *ACTIONS[name.split("-")[0]]):
            for body in (b"", b"\xff\xfe", b"[]", b'{"evil": 1}', large):
                with pytest.raises(flight.FlightError, match="this is no|allowed|no such action") as caught:
                    list(client.do_action(flight.Action(action, body), endpoint.within(SECONDS)))
                assert "Traceback" not in str(caught.value)
        for body in (b"", b"\xff", b'{"evil": 1}', large):
            with pytest.raises(flight.FlightError, match="this is no|allowed|hands out no streams"):
                list(client.do_get(flight.Ticket(body), endpoint.within(SECONDS)))


def ports_of(run: Run) -> dict[int, set[tuple[Any, ...]]]:
    """Where each process listens."""
    return {
        pid: {tuple(c.laddr) for c in each.net_connections("inet") if c.status == "LISTEN"}
        for pid, each in run.processes.items()
    }


def bytes_of_strangers(run: Run, held: ExitStack) -> None:
    """Garbage at each port, and connections that say one byte and stay."""
    for endpoint in run.endpoints.values():
        for data in (*GARBAGE, os.urandom(4096)):
            with socket.create_connection((endpoint.host, endpoint.port)) as stranger, suppress(OSError):
                stranger.sendall(data)
        for _ in range(SLOW):
            held.enter_context(socket.create_connection((endpoint.host, endpoint.port))).sendall(b"P")
    for endpoint in run.endpoints.values():
        if endpoint.certificate:
            with pytest.raises(Unreachable):
                Caller(replace(endpoint, certificate=""), 1.0).call("status", None, Message)


def nothing_secret_is_open(run: Run) -> None:
    announced = [*(run.folder / "endpoints").glob("*.json"), run.servers["relay-a"]]
    secrets = [Endpoint.read(path).token.encode() for path in announced]
    assert len(secrets) == 6 and all(len(each) == 64 for each in secrets)
    for process in run.processes.values():
        for said in ("cmdline", "environ"):
            text = Path(f"/proc/{process.pid}/{said}").read_bytes()
            assert not any(secret in text or secret[:16] in text for secret in secrets)
        assert not [each for each in process.open_files() if each.path.startswith("/dev/shm/")]
        assert not [c for c in process.net_connections("unix") if c.laddr and c.status == "LISTEN"]
    for path in (path for path in run.folder.rglob("*") if path.is_file()):
        with suppress(FileNotFoundError):  # replaced meanwhile
            text, mode = path.read_bytes(), path.stat().st_mode
            assert path in announced or not any(secret in text for secret in secrets), path
            if path in announced or path.name == "actors.json":
                assert mode & 0o077 == 0, path
    assert (run.folder / "endpoints").stat().st_mode & 0o077 == 0  # Raft's journals are there too
    for kept in (run.folder / "weights", run.servers["relay-a"].with_suffix("")):
        assert not kept.exists() or kept.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_nothing_of_a_run_can_be_read_fed_or_steered_from_its_ports_and_it_goes_on(attacked: Run) -> None:
    old = attacked.endpoints["shard-0000"]
    (shard,) = [
        each for each in attacked.processes.values()
        if "stages.rl.store" in each.cmdline() and str(attacked.servers["shard-0000"]) in each.cmdline()
    ]  # fmt: skip
    shard.kill()  # so that there is a token of an earlier start
    until(lambda: attacked.servers["shard-0000"].exists() and attacked.endpoints["shard-0000"] != old)
    until(lambda: Watch(attacked).works() == "")
    before, open_ports = set(attacked.processes), ports_of(attacked)
    with Watch(attacked), ExitStack() as held:
        bytes_of_strangers(attacked, held)
        strangers(attacked, old)
        replayed(attacked)
        nonsense(attacked)
        nothing_secret_is_open(attacked)
    assert set(attacked.processes) == before and ports_of(attacked) == open_ports, "a process has died"
    status = Caller(attacked.servers["coordinator"], SECONDS).call("status", None, Status)
    assert status.actors == 0 and not status.set_aside
