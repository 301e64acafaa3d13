"""The server: a real one, with several clients."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import psutil
import pyarrow as pa
import pytest
import torch
from pyarrow import flight
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from data.transport.client import Caller
from data.transport.endpoint import Endpoint
from data.transport.server import MESSAGE_BYTES
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Request, generate
from stages.rollout.vllm import wire
from stages.rollout.vllm.client import ServerEngine
from stages.rollout.vllm.launch import Process

LIMIT = 1e-4
LONG = SamplingConfig(max_new_tokens=60)
SECONDS = 240.0

Make = Callable[..., PreTrainedModel]
Gap = Callable[..., float]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def owner(make_model: Make, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Iterator[ServerEngine]:
    """The client that has started the server."""
    config = make_model(0).config
    log = folder / "log"
    process = Process(config, tokenizer, folder / "endpoint.json", log, slots=16, memory_share=0.4, seconds=SECONDS)
    client = ServerEngine(folder / "endpoint.json", config.max_position_embeddings, log, process)
    yield client
    client.close()
    assert not psutil.pid_exists(process.pid)


@pytest.fixture
def other(owner: ServerEngine, folder: Path) -> Iterator[ServerEngine]:
    """A client beside it."""
    client = ServerEngine(folder / "endpoint.json", owner.context, folder / "log")
    yield client
    client.close()


def ask(count: int) -> list[Request]:
    return [Request([1, 5, 6, 7], seed) for seed in range(count)]


def collect(engine: ServerEngine, count: int) -> dict[int, Completion]:
    ended: dict[int, Completion] = {}
    while len(ended) < count:
        ended.update(engine.step())
    return ended


def test_two_clients_at_once_get_each_their_own(
    owner: ServerEngine, other: ServerEngine, make_model: Make, gap: Gap
) -> None:
    model = make_model(1)
    owner.update(model.named_parameters(), 1)
    other.update(model.named_parameters(), 1)
    hot, cold = SamplingConfig(max_new_tokens=60, temperature=1.5), SamplingConfig(max_new_tokens=5)
    answers: list[Completion] = []
    thread = Thread(target=lambda: answers.extend(generate(other, ask(20), hot)))
    thread.start()
    mine = generate(owner, ask(10), cold, greedy=True)
    thread.join()
    assert len(answers) == 20 and max(len(answer.tokens) for answer in answers) > 5
    assert max(gap(model, *pair, 1.5) for pair in zip(ask(20), answers, strict=True)) < LIMIT
    assert len({tuple(answer.tokens) for answer in mine}) == 1
    assert max(gap(model, *pair) for pair in zip(ask(10), mine, strict=True)) < LIMIT


def test_turns_that_come_one_after_another_share_the_slots_of_their_client(
    owner: ServerEngine, make_model: Make
) -> None:
    """With one slot a request has ended before the next begins, whichever batch of requests it came with."""
    model = make_model(1)
    owner.update(model.named_parameters(), 1)
    owner.start(SamplingConfig(max_new_tokens=200, slots=1))
    order: list[int] = []
    for key in range(6):
        owner.add(key, Request([1, 5, 6, 7], key))
        order += [ended for ended, _ in owner.step()]
    while len(order) < 6:
        order += [ended for ended, _ in owner.step()]
    assert order == sorted(order)


def test_a_server_that_generates_shows_progress_and_weights_that_never_come_are_an_error(
    owner: ServerEngine, other: ServerEngine, make_model: Make
) -> None:
    model = make_model(1)
    owner.update(model.named_parameters(), 1)
    before = owner.progress
    generate(owner, ask(1), LONG)
    assert owner.progress > before
    other._seconds = 0.2
    with pytest.raises(RuntimeError, match=r"weights of version 1, and after 0 s still not those of 2"):
        other.update(model.named_parameters(), 2)


def test_one_updates_and_one_cancels_while_requests_are_in_flight(
    owner: ServerEngine, other: ServerEngine, make_model: Make
) -> None:
    owner.update(make_model(1).named_parameters(), 1)
    other.start(SamplingConfig(max_new_tokens=200))
    for key in range(40):
        other.add(key, Request([1, 5, 6, 7], key))
    ended = dict(other.step())
    owner.update(make_model(2).named_parameters(), 2)
    other.cancel([38, 39, 1000])
    ended |= collect(other, 40 - len(ended))
    assert "cancelled" in {ended[key].reason for key in (38, 39)}
    assert {version for completion in ended.values() for version in completion.versions.tolist()} <= {1, 2}
    for completion in ended.values():
        assert (completion.versions[1:] >= completion.versions[:-1]).all()
    assert len(generate(owner, ask(2), LONG)) == 2


def test_requests_of_a_client_that_is_gone_are_dropped(owner: ServerEngine, make_model: Make, folder: Path) -> None:
    owner.update(make_model(1).named_parameters(), 1)
    client = ServerEngine(folder / "endpoint.json", owner.context, folder / "log")
    client.start(SamplingConfig(max_new_tokens=240))
    for key, request in enumerate(ask(60)):
        client.add(key, request)
    client.step()
    client.close()
    assert len(generate(owner, ask(3), LONG)) == 3
    owner.sleep()  # which waits until nothing is in flight
    owner.wake()


def test_a_call_without_the_token_is_refused(owner: ServerEngine, folder: Path) -> None:
    endpoint = Endpoint.read(folder / "endpoint.json")
    client = flight.FlightClient(endpoint.location)
    for token in ("", "wrong", endpoint.token[:-1], endpoint.token + "0"):
        options = replace(endpoint, token=token).options
        descriptor = flight.FlightDescriptor.for_command(b'{"version": 9}')
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(client.do_action(flight.Action("version", b"{}"), options))
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.do_put(descriptor, wire.WEIGHTS, options)[0].close()
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.do_exchange(descriptor, options)[1].read_chunk()
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(client.do_action(flight.Action("version", b"{}")))


def test_only_the_owner_can_read_the_endpoint_and_only_this_machine_reach_it(owner: ServerEngine, folder: Path) -> None:
    assert stat.S_IMODE((folder / "endpoint.json").stat().st_mode) == 0o600
    endpoint = Endpoint.read(folder / "endpoint.json")
    assert endpoint.token not in repr(endpoint) and len(endpoint.token) == 64
    assert endpoint.host == "127.0.0.1"
    listening = [c for c in psutil.Process(owner._process.pid).net_connections("inet") if c.status == "LISTEN"]
    assert {connection.laddr.ip.removeprefix("::ffff:") for connection in listening} == {"127.0.0.1"}
    assert endpoint.token not in " ".join(psutil.Process(owner._process.pid).cmdline())


def test_what_the_user_did_wrong_is_a_value_error_and_the_server_goes_on(
    owner: ServerEngine, make_model: Make, gap: Gap
) -> None:
    model = make_model(1)
    right = dict(model.named_parameters())
    with pytest.raises(ValueError, match="model.extra.weight is not in the engine's model"):
        owner.update((right | {"model.extra.weight": torch.zeros(2)}).items(), 3)
    with pytest.raises(ValueError, match="the prompt has 256 tokens"):
        generate(owner, [Request([5] * 256, 0)], LONG)
    owner.update(right.items(), 3)
    assert gap(model, ask(1)[0], generate(owner, ask(1), LONG)[0]) < LIMIT


def wrong_turns() -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """What no client says."""
    right, order = wire.requests_batch([(0, Request([1, 5], 0))]), wire.Order(sampling=LONG).model_dump_json().encode()
    for text in (b"", b"[]", b"\xff", b'{"sampling": {}, "greedy": "x"}', b'{"sampling": {}, "noise": "x"}'):
        yield right, text
    for text in (b'{"sampling": {}, "cancel": [[1]]}', b'{"sampling": {"evil": 1}}', b" " * (MESSAGE_BYTES + 1)):
        yield right, text
    yield pa.RecordBatch.from_pydict({"x": [1]}), order
    row = right.to_pylist()[0]
    for change in ({"prompt": [-1]}, {"prompt": [2**31 - 1]}, {"prompt": [None]}, {"prompt": None}, {"prompt": []}):
        yield pa.RecordBatch.from_pylist([row | change], wire.REQUESTS), order
    for change in ({"key": None}, {"seed": None}, {"max_new_tokens": -1}):
        yield pa.RecordBatch.from_pylist([row | change], wire.REQUESTS), order


def wrong_weights() -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"x": [1]})
    row = {"name": "a", "dtype": "float32", "shape": [1], "start": 0, "data": b"1234"}
    for change in ({"dtype": "nn"}, {"shape": [-1]}, {"shape": [None]}, {"shape": None}, {"start": 4}, {"data": None}):
        yield pa.RecordBatch.from_pylist([row | change], wire.WEIGHTS)
    yield pa.RecordBatch.from_pylist([row, row], wire.WEIGHTS)


def test_who_attacks_its_port_is_refused_and_the_engine_goes_on(
    owner: ServerEngine, other: ServerEngine, make_model: Make, gap: Gap, folder: Path
) -> None:
    model = make_model(1)
    owner.update(model.named_parameters(), 1)
    endpoint = Endpoint.read(folder / "endpoint.json")
    client, descriptor = endpoint.connect(), flight.FlightDescriptor.for_command(b"play")
    slow = [socket.create_connection((endpoint.host, endpoint.port)) for _ in range(50)]
    for each in slow:
        each.sendall(b"P")
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", os.urandom(4096)):
        with socket.create_connection((endpoint.host, endpoint.port)) as stranger:
            stranger.sendall(data)
    once = endpoint.within(SECONDS)
    assert list(client.do_action(flight.Action("version", b"{}"), once))
    with pytest.raises(flight.FlightUnauthorizedError, match="came before"):
        list(client.do_action(flight.Action("version", b"{}"), once))
    with pytest.raises(flight.FlightUnauthenticatedError, match="another start"):
        list(client.do_action(flight.Action("version", b"{}"), replace(endpoint, start="x").within(SECONDS)))
    for batch, order in wrong_turns():  # from somebody with the token
        with pytest.raises(flight.FlightError) as caught:
            writer, reader = client.do_exchange(descriptor, endpoint.within(SECONDS))
            writer.begin(batch.schema)
            writer.write_with_metadata(batch, order)
            reader.read_chunk()
        assert "the server failed" not in str(caught.value) and "Traceback" not in str(caught.value)
    for body in (b"", b"[]", b'{"version": "x"}', b" " * (MESSAGE_BYTES + 1)):
        with pytest.raises(flight.FlightError, match="this is no|allowed"):
            list(client.do_action(flight.Action("wake", body), endpoint.within(SECONDS)))
    for batch in wrong_weights():
        with pytest.raises(ValueError, match=r"."):
            Caller(endpoint, SECONDS).put(wire.Version(version=2), batch.schema, lambda b=batch: [b], wire.Version)
    owner.update(model.named_parameters(), 3)
    other.update(model.named_parameters(), 3)
    for engine in (owner, other):
        assert gap(model, ask(1)[0], generate(engine, ask(1), LONG)[0]) < LIMIT
    for each in slow:
        each.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_arrive_bit_for_bit_in_pieces(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(wire, "PIECE", 100)
    sent = {"a": torch.randn(7, 9).to(dtype), "b": torch.zeros(0, 4, dtype=dtype), "c": torch.tensor(3.0, dtype=dtype)}
    batches = list(wire.weights_batches(sent.items()))
    assert len(batches) > 3
    found = dict(wire.read_weights(batches))
    assert found.keys() == sent.keys()
    assert all(torch.equal(found[name], sent[name]) and found[name].dtype == dtype for name in sent)
    with pytest.raises(ValueError, match="a: a piece of the tensor is missing"):
        list(wire.read_weights([batches[0], *batches[2:]]))


STARTS = """
import sys, time
from pathlib import Path
from transformers import AutoConfig
from data.tokenizer import load_tokenizer
from stages.rollout.vllm.launch import Process
folder = Path(sys.argv[1])
process = Process(AutoConfig.from_pretrained(folder), load_tokenizer(folder), folder / "endpoint.json", folder / "log",
                  slots=4, memory_share=0.4, seconds=240)
print(process.pid, flush=True)
time.sleep(600)
"""


def test_the_server_ends_with_the_process_that_started_it(
    make_model: Make, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    make_model(0).config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    parent = subprocess.Popen([sys.executable, "-c", STARTS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    end = time.monotonic() + 20
    while psutil.pid_exists(pid) and time.monotonic() < end:
        time.sleep(0.1)
    assert not psutil.pid_exists(pid)


def test_a_server_that_dies_is_an_error_with_its_last_lines(
    owner: ServerEngine, other: ServerEngine, make_model: Make, folder: Path
) -> None:
    """The last of the module: it ends the server."""
    owner.update(make_model(1).named_parameters(), 1)
    other.start(SamplingConfig(max_new_tokens=240))
    for key, request in enumerate(ask(60)):
        other.add(key, request)
    other.step()
    with (folder / "log").open("a") as log:
        log.write("its last words\n")
    os.kill(owner._process.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"the vLLM server has ended or failed[\s\S]*its last words"):
        collect(other, 60)
    with pytest.raises(RuntimeError, match="its last words"):
        owner.update(make_model(1).named_parameters(), 2)
