"""Every way in that a stranger has, and what somebody with the token may not do either."""

import os
import socket
import stat
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyarrow import flight
from pydantic import BaseModel, ConfigDict

from data.transport.client import Caller, Unreachable
from data.transport.endpoint import CALL, END, HEADER, Endpoint
from data.transport.guard import SESSIONS, WINDOW, Guard
from data.transport.server import Action, Incoming, Server

COLUMNS = pa.schema([("x", pa.int64())])
SECONDS = 30.0
DENIED = (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError)
REFUSED = (*DENIED, OSError)
"""Flight has no error of its own for what `get_schema` is refused."""


class Number(BaseModel):
    """A message."""

    model_config = ConfigDict(extra="forbid")
    n: int


class Counter(Server):
    """What a server may do: it counts everything that came through."""

    def __init__(self, tls: bool) -> None:
        actions = {"add": Action(Number, self._add), "fail": Action(Number, self._fail)}
        super().__init__("127.0.0.1", actions, tls=tls, message_bytes=2**16, batch_bytes=2**20)
        self.done = 0

    def _add(self, number: Number) -> Number:
        self.done += 1
        return Number(n=number.n + 1)

    def _fail(self, number: Number) -> Number:
        raise RuntimeError(f"secret {number.n}")

    def put(self, order: bytes, batches: Incoming) -> BaseModel:
        number = self.message(Number, order)
        for batch in batches:
            number.n += len(batch)
        self.done += 1
        return number

    def get(self, order: bytes, wanted: Callable[[], bool]) -> Any:
        number = self.message(Number, order)
        self.done += 1
        return COLUMNS, iter([rows(number.n)])


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(count), pa.int64())], schema=COLUMNS)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def server(request: pytest.FixtureRequest) -> Generator[Counter]:
    server = Counter(request.param)
    yield server
    server.shutdown()


def options(endpoint: Endpoint, token: str, call: str) -> flight.FlightCallOptions:
    headers = [(HEADER.encode(), token.encode()), (CALL.encode(), call.encode())]
    return flight.FlightCallOptions(timeout=SECONDS, headers=headers)


def every_call(client: flight.FlightClient, make: Callable[[], flight.FlightCallOptions]) -> list[Callable[[], object]]:
    """All that Flight knows to ask, each with the options that `make` makes."""
    descriptor = flight.FlightDescriptor.for_command(b'{"n": 1}')

    def put() -> object:
        writer, reader = client.do_put(descriptor, COLUMNS, make())
        writer.write_batch(rows(1))
        writer.write_metadata(END)
        writer.done_writing()
        answer = reader.read()
        writer.close()
        return answer

    def exchange() -> object:
        return client.do_exchange(descriptor, make())[1].read_chunk()

    return [
        lambda: list(client.do_action(flight.Action("add", b'{"n": 1}'), make())),
        lambda: list(client.do_get(flight.Ticket(b'{"n": 1}'), make())),
        put,
        exchange,
        lambda: list(client.list_actions(make())),
        lambda: list(client.list_flights(options=make())),
        lambda: client.get_flight_info(descriptor, make()),
        lambda: client.get_schema(descriptor, make()),
    ]


def test_without_the_token_of_this_start_nothing_can_be_read_fed_or_steered(server: Counter) -> None:
    endpoint = server.endpoint
    client = endpoint.connect()
    wrong = ["", "wrong", endpoint.token[:-1], endpoint.token + "0", Counter(False).endpoint.token, "x" * 64]
    for number, token in enumerate(wrong):
        calls = every_call(client, lambda t=token, n=number: options(endpoint, t, f"{endpoint.start}.s{n}.1"))
        for call in calls:
            with pytest.raises(REFUSED, match="token|start|number"):
                call()
    for call in every_call(client, lambda: flight.FlightCallOptions(timeout=SECONDS)):
        with pytest.raises(REFUSED, match="token|start|number"):
            call()
    assert server.done == 0
    assert Caller(endpoint).call("add", Number(n=1), Number).n == 2


def test_a_call_that_came_before_or_was_meant_for_another_start_is_refused(server: Counter) -> None:
    endpoint = server.endpoint
    client = endpoint.connect()
    once = endpoint.within(SECONDS)
    assert len(list(client.do_action(flight.Action("add", b'{"n": 1}'), once))) == 1
    for call in every_call(client, lambda: once):
        with pytest.raises(REFUSED, match="came before"):
            call()
    for call in every_call(client, lambda: replace(endpoint, start="another").within(SECONDS)):
        with pytest.raises(REFUSED, match="another start"):
            call()
    start = endpoint.start
    for text in ("", start, f"{start}.", f"{start}.a", f"{start}.a.", f"{start}.a.-1", f"{start}.a.1e3", f"{start}..1"):
        for call in every_call(client, lambda t=text: options(endpoint, endpoint.token, t)):
            with pytest.raises(REFUSED, match="token|start|number"):
                call()
    assert server.done == 1


def test_calls_of_one_session_may_overtake_each_other_but_none_counts_twice() -> None:
    guard = Guard("token", "start")
    took = [
        number for number in [1, 3, 2, 3, 2, 5000, 4999, 4999, 5000 - WINDOW, 5001 - WINDOW] if _takes(guard, number)
    ]
    assert took == [1, 3, 2, 5000, 4999, 5001 - WINDOW]
    assert _takes(guard, 1, "other") and not _takes(guard, 1, "other")


def test_what_a_guard_remembers_is_bounded() -> None:
    guard = Guard("token", "start")
    for session in range(SESSIONS + 100):
        assert _takes(guard, 1, str(session))
    assert guard.remembered == SESSIONS


def _takes(guard: Guard, number: int, session: str = "s") -> bool:
    try:
        guard.start_call(None, {HEADER: ["token"], CALL: [f"start.{session}.{number}"]})
    except flight.FlightUnauthorizedError:
        return False
    return True


def test_oversized_messages_and_batches_are_refused(server: Counter) -> None:
    caller = Caller(server.endpoint, SECONDS)
    client = server.endpoint.connect()
    body = b'{"n": ' + b" " * 2**16 + b"1}"
    with pytest.raises(flight.FlightError, match="65,536 are allowed"):
        list(client.do_action(flight.Action("add", body), server.endpoint.within(SECONDS)))
    with pytest.raises(flight.FlightError, match="65,536 are allowed"):
        list(client.do_get(flight.Ticket(body), server.endpoint.within(SECONDS)))
    with pytest.raises(ValueError, match="1,048,576 are allowed"):
        caller.put(Number(n=1), COLUMNS, lambda: [rows(2**17 + 1)], Number)
    assert server.done == 0
    assert caller.put(Number(n=1), COLUMNS, lambda: [rows(2**17)], Number).n == 2**17 + 1


def test_malformed_messages_are_refused_in_words_and_no_traceback_goes_out(server: Counter, capfd: Any) -> None:
    client = server.endpoint.connect()
    for body in (b"", b"{", b"null", b"[]", b'{"n": "x"}', b'{"n": 1, "m": 2}', b"\xff\xfe", b'{"n": 1e999}'):
        for call in (
            lambda b=body: list(client.do_action(flight.Action("add", b), server.endpoint.within(SECONDS))),
            lambda b=body: list(client.do_get(flight.Ticket(b), server.endpoint.within(SECONDS))),
        ):
            with pytest.raises(flight.FlightError, match="this is no Number") as caught:
                call()
            assert "Traceback" not in str(caught.value) and "server.py" not in str(caught.value)
    caller = Caller(server.endpoint, SECONDS)
    with pytest.raises(ValueError, match="no such action"):
        caller.call("drop", Number(n=1), Number)
    with pytest.raises(Unreachable) as failed:
        caller.call("fail", Number(n=7), Number)
    assert "secret" not in str(failed.value) and "its log says why" in str(failed.value)
    assert "secret 7" in capfd.readouterr().err
    assert server.done == 0 and caller.call("add", Number(n=1), Number).n == 2


def test_garbage_and_half_sent_bytes_harm_nobody(server: Counter) -> None:
    place = (server.endpoint.host, server.endpoint.port)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for data in (
        os.urandom(4096),
        b"GET / HTTP/1.1\r\n\r\n",
        preface + os.urandom(4096),
        preface + b"\xff" * 9,
        b"\x16\x03\x01",
    ):
        with socket.create_connection(place) as stranger:
            stranger.sendall(data)
    assert Caller(server.endpoint, SECONDS).call("add", Number(n=1), Number).n == 2


def test_many_connections_that_say_nothing_hold_up_nobody(server: Counter) -> None:
    place = (server.endpoint.host, server.endpoint.port)
    slow = [socket.create_connection(place) for _ in range(200)]
    try:
        for each in slow:
            each.sendall(b"P")
        caller = Caller(server.endpoint, SECONDS)
        assert [caller.call("add", Number(n=n), Number).n for n in range(20)] == list(range(1, 21))
    finally:
        for each in slow:
            each.close()


def test_with_tls_nobody_is_answered_in_plain_text_or_with_another_certificate(capfd: Any) -> None:
    server, other = Counter(True), Counter(True)
    for endpoint in (
        replace(server.endpoint, certificate=""),
        replace(server.endpoint, certificate=other.endpoint.certificate),
    ):
        with pytest.raises(Unreachable):
            Caller(endpoint, 2.0).call("add", Number(n=1), Number)
    assert server.done == 0
    assert Caller(server.endpoint).call("add", Number(n=1), Number).n == 2


def test_with_tls_a_stranger_ends_in_the_handshake_and_floods_cost_no_memory() -> None:
    server, other = Counter(True), Counter(True)
    assert Caller(server.endpoint).call("add", Number(n=1), Number).n == 2
    before, flood = psutil.Process().memory_info().rss, bytes(2**27)
    for identity in ("", other.endpoint.identity):
        with pytest.raises(Unreachable):
            Caller(replace(server.endpoint, identity=identity), 5.0).call("add", Number(n=1), Number)
        client = replace(server.endpoint, identity=identity).connect()
        with pytest.raises(flight.FlightUnavailableError):
            list(client.do_action(flight.Action("add", flood), flight.FlightCallOptions(timeout=SECONDS)))
    for begin in (b"", b"\x16\x03\x01\xff\xff\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
        with socket.create_connection((server.endpoint.host, server.endpoint.port)) as stranger, suppress(OSError):
            stranger.settimeout(SECONDS)
            stranger.sendall(begin + flood)
    assert psutil.Process().memory_info().rss - before < 3 * len(flood), "this process has it as flood and as call"
    assert server.done == 1


def test_with_tls_the_token_does_not_cross_the_network(tmp_path: Path) -> None:
    """A relay of bytes stands between client and server, and reads all of them."""
    for tls, seen in ((False, True), (True, False)):
        server = Counter(tls)
        tap, heard = socket.create_server(("127.0.0.1", 0)), bytearray()
        Thread(target=_listen, args=(tap, server.endpoint.port, heard), daemon=True).start()
        between = replace(server.endpoint, port=tap.getsockname()[1])
        assert Caller(between, SECONDS).call("add", Number(n=41), Number).n == 42
        assert (server.endpoint.token.encode() in heard or b'{"n":41}' in heard) == seen
        tap.close()


def _listen(tap: socket.socket, port: int, heard: bytearray) -> None:
    client, _ = tap.accept()
    server = socket.create_connection(("127.0.0.1", port))

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):  # whoever hangs up first
            while data := source.recv(65536):
                heard.extend(data)
                target.sendall(data)

    Thread(target=pass_on, args=(server, client), daemon=True).start()
    pass_on(client, server)


def test_only_its_owner_reads_an_announcement_and_no_half_of_it_is_ever_seen(server: Counter, tmp_path: Path) -> None:
    path = tmp_path / "endpoints" / "one.json"
    old = os.umask(0)
    try:
        server.endpoint.announce(path)
        server.endpoint.announce(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and Endpoint.read(path) == server.endpoint
    assert [each.name for each in path.parent.iterdir()] == ["one.json"]
    assert server.endpoint.token not in repr(server.endpoint) and len(server.endpoint.token) == 64


def test_a_server_listens_at_the_address_that_it_announces_and_nowhere_else(server: Counter) -> None:
    own = [c.laddr for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"]
    assert [address.ip.removeprefix("::ffff:") for address in own if address.port == server.endpoint.port] == [
        "127.0.0.1"
    ]


def test_a_stream_of_which_nothing_more_comes_ends_with_its_deadline_and_half_of_it_is_not_taken_for_all(
    server: Counter,
) -> None:
    client = server.endpoint.connect()
    descriptor = flight.FlightDescriptor.for_command(b'{"n": 1}')
    writer, reader = client.do_put(descriptor, COLUMNS, server.endpoint.within(5.0))
    writer.write_batch(rows(3))
    began = time.monotonic()
    with pytest.raises((flight.FlightTimedOutError, flight.FlightCancelledError)):
        reader.read()
        writer.close()
    assert time.monotonic() - began < SECONDS
    writer, reader = client.do_put(descriptor, COLUMNS, server.endpoint.within(SECONDS))
    writer.write_batch(rows(3))
    with pytest.raises(flight.FlightError, match="broke off"):
        writer.done_writing()  # without the last message
        reader.read()
        writer.close()
    assert server.done == 0
