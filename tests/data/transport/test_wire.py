"""Trajectories on the wire, and calls to a server that dies and comes back elsewhere."""

import threading
from collections.abc import Generator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import BaseModel

from data.trajectories import Trajectories
from data.transport import trajectories as wire
from data.transport.client import Caller, Unreachable
from data.transport.server import Action, Incoming, Server


def play(count: int = 5, length: int = 4) -> Trajectories:
    total = count * length
    mask = np.arange(total) % length > 0
    return Trajectories(
        tokens=np.arange(total, dtype=np.int32),
        mask=mask,
        logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        versions=np.where(mask, 3, -1).astype(np.int32),
        offsets=np.arange(0, total + 1, length),
        prompt_lengths=np.ones(count, np.int32),
        rewards=np.ones(count, np.float32),
        terms=np.ones((count, 2), np.float32),
        finished=np.ones(count, np.bool_),
        limits=np.full(count, 9, np.int32),
        graded=np.ones(count, np.bool_),
        groups=np.zeros(count, np.int32),
        seeds=np.arange(count),
        prompt_ids=tuple(f"row-{n}" for n in range(count)),
    )


def same(one: Trajectories, other: Trajectories) -> bool:
    pairs = [(np.asarray(getattr(one, f.name)), np.asarray(getattr(other, f.name))) for f in fields(Trajectories)]
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def test_what_arrives_is_what_was_sent_in_one_batch_or_many(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = play(50)
    for tokens, parts in ((2**20, 1), (8, 25), (1, 50)):
        monkeypatch.setattr(wire, "BATCH_TOKENS", tokens)
        stream = list(wire.batches(sent))
        assert len(stream) == parts and same(wire.from_batches(stream), sent)


def test_the_flat_arrays_are_not_copied() -> None:
    sent = play()
    arrived = wire.from_batches(wire.batches(sent))
    for name in ("tokens", "mask", "logprobs", "versions"):
        assert np.shares_memory(getattr(sent, name), getattr(arrived, name))


WRONG: dict[str, tuple[str, Any]] = {
    "tokens are below 0": ("tokens", -1),
    "logprobs are no numbers": ("logprobs", np.nan),
    "versions are below 0": ("versions", -2),
    "rewards are no numbers": ("rewards", np.inf),
    "terms are no numbers": ("terms", np.nan),
    "prompt_lengths are not within": ("prompt_lengths", 9),
    "mask is true within the prompt": ("prompt_lengths", 3),
    "limits are below 0": ("limits", -1),
    "groups are below 0": ("groups", -1),
}


@pytest.mark.parametrize("what", WRONG)
def test_samples_that_make_no_sense_are_refused(what: str) -> None:
    name, value = WRONG[what]
    values = getattr(play(), name).copy()
    values[1] = value
    with pytest.raises(ValueError, match=what):
        wire.from_batches(wire.batches(replace(play(), **{name: values})))


def test_other_columns_lengths_or_nothing_at_all_are_refused() -> None:
    (batch,) = wire.batches(play())
    with pytest.raises(ValueError, match="not those of trajectories"):
        wire.from_batches([batch.drop_columns(["seeds"])])
    with pytest.raises(ValueError, match="no trajectories"):
        wire.from_batches([])
    (longer,) = wire.batches(play(5, 5))
    columns = [longer.column(n) if n == "logprobs" else batch.column(n) for n in batch.schema.names]
    with pytest.raises(ValueError, match="differ in length"):
        wire.from_batches([pa.RecordBatch.from_arrays(columns, schema=batch.schema)])


class Number(BaseModel):
    """A message."""

    n: int


class Once(Server):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", {"add": Action(Number, self._add)})
        self.calls = 0
        self._lock = threading.Lock()

    def _add(self, number: Number) -> Number:
        with self._lock:
            self.calls += 1
        return Number(n=number.n + 1)


@pytest.fixture
def first() -> Generator[Once]:
    server = Once()
    yield server
    server.shutdown()


def test_a_caller_finds_the_server_that_took_the_place_of_one_that_is_gone(first: Once, tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    caller = Caller(path, 5.0)
    with pytest.raises(Unreachable, match="nothing is announced"):
        caller.call("add", Number(n=1), Number)
    first.endpoint.announce(path)
    assert caller.call("add", Number(n=1), Number).n == 2
    first.shutdown()
    with pytest.raises(Unreachable):
        caller.call("add", Number(n=1), Number)
    second = Once()
    threading.Timer(0.3, lambda: second.endpoint.announce(path)).start()
    assert caller.call("add", Number(n=2), Number, again=30.0).n == 3
    second.shutdown()


def test_threads_share_a_caller_and_each_call_counts_once(first: Once) -> None:
    caller, answers = Caller(first.endpoint), list[int]()
    calls = [
        threading.Thread(
            target=lambda t=t: answers.extend(caller.call("add", Number(n=t), Number).n for _ in range(50))
        )
        for t in range(8)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert sorted(answers) == sorted(t + 1 for t in range(8) for _ in range(50)) and first.calls == 400


class Slow(Once):
    """Takes streams, and answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers, self.ended = threading.Event(), threading.Event()

    def put(self, order: bytes, batches: Incoming) -> BaseModel:
        for _ in batches:
            pass
        self.answers.wait(30.0)
        return Number(n=1)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        super().do_put(context, descriptor, reader, writer)
        self.ended.set()


def test_a_caller_that_has_gone_before_the_answer_to_its_stream_is_no_failure_of_the_server(
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = Slow()
    batch = pa.record_batch({"a": [1]})
    with pytest.raises(Unreachable):
        Caller(server.endpoint).put(Number(n=0), batch.schema, lambda: [batch], Number, seconds=3.0)
    server.answers.set()
    assert server.ended.wait(30.0)
    assert "Traceback" not in capfd.readouterr().err
    assert Caller(server.endpoint).call("add", Number(n=1), Number).n == 2
    server.shutdown()
