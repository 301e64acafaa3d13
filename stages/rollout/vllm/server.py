"""`python -m stages.rollout.vllm.server`: one vLLM for several clients, behind Arrow Flight.

The engine lives in the main thread, which plays steps; what clients ask is done between two steps, so an update finds
every request at rest, and the request goes on with the new weights. Ends when the process that started it has.
"""

import argparse
import os
import queue
import time
import traceback
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from transformers import AutoConfig

from data.tokenizer import load_tokenizer
from data.transport.server import Action, Incoming, Server, ends_with, refusals
from stages.rollout.engine import Completion, Request
from stages.rollout.vllm import wire
from stages.rollout.vllm.engine import Sampling, VllmEngine

LOOK_SECONDS = 0.1
"""How long a client waits for a completion before it is told that there is none yet."""


@dataclass
class Client:
    """What the server knows of a client as long as it lives."""

    ended: "queue.SimpleQueue[tuple[int, Completion]]" = field(default_factory=queue.SimpleQueue)
    """Keys and completions that it has not been told."""
    numbers: dict[int, int] = field(default_factory=dict[int, int])
    """The engine's key of each of its requests."""
    order: wire.Order | None = None
    sampling: Sampling | None = None
    """Of its requests, as `order` wants it: the slots are those of the client, however many turns its episodes have."""


class Desk:
    """Brings what many threads ask to the one thread that has the engine, and the completions back."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self._asked: queue.SimpleQueue[tuple[Callable[[VllmEngine], Any], Future[Any]]] = queue.SimpleQueue()
        self._owners: dict[int, tuple[queue.SimpleQueue[tuple[int, Completion]], int]] = {}
        self._numbers = count()

    def ask(self, question: Callable[[VllmEngine], Any]) -> Any:
        """What `question` returns or raises, asked between two steps."""
        answer: Future[Any] = Future()
        self._asked.put((question, answer))
        return answer.result()

    def take(self, engine: VllmEngine, client: "Client", order: wire.Order, requests: list[tuple[int, Request]]) -> int:
        """New requests and cancellations of a client. Returns how many tokens the engine has made so far."""
        if requests and client.order != order.plain:
            client.order = order.plain
            client.sampling = engine.sampling(order.sampling, greedy=order.greedy, noise=order.noise)
        for key, request in requests:
            number = next(self._numbers)
            engine.add(number, request, client.sampling)
            self._owners[number] = (client.ended, key)
            client.numbers[key] = number
        engine.cancel(client.numbers[key] for key in order.cancel if key in client.numbers)
        return engine.progress

    def serve(self) -> None:
        """Answer and play, for ever. An error that is not the client's own is raised here, and ends the server."""
        while True:
            while not self._asked.empty() or self._engine.idle:
                question, answer = self._asked.get()
                try:
                    answer.set_result(question(self._engine))
                except ValueError as error:
                    answer.set_exception(error)
                self._hand_out()  # what was cancelled
            self._hand_out()

    def _hand_out(self) -> None:
        for number, completion in self._engine.step():
            ended, key = self._owners.pop(number)
            ended.put((key, completion))


class Nothing(BaseModel):
    """What an action takes that needs nothing."""

    model_config = ConfigDict(extra="forbid")


class EngineServer(Server):
    """What clients can ask: `version`, `wake`, `sleep` (once nothing is in flight), new weights, and to play."""

    def __init__(self, host: str, desk: Desk, vocabulary: int) -> None:
        """`vocabulary`: how many tokens the model knows."""
        actions = {"version": self._version, "wake": self._wake, "sleep": self._sleep}
        super().__init__(host, {name: Action(Nothing, answer) for name, answer in actions.items()})
        self._desk, self._vocabulary = desk, vocabulary

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """New requests and cancellations come in, what has ended goes out, in turns, as long as the client lives."""
        with refusals():
            writer.begin(wire.COMPLETIONS)
            client = Client()
            try:
                for chunk in reader:
                    self._turn(client, chunk, writer)
            finally:
                left = list(client.numbers.values())
                self._desk.ask(lambda engine: engine.cancel(left))

    def put(self, order: bytes, batches: Incoming) -> wire.Version:
        """New weights."""
        version = self.message(wire.Version, order)
        weights = wire.read_weights(batches)
        self._desk.ask(lambda engine: engine.update(weights, version.version))
        return version

    def _turn(self, client: Client, chunk: Any, writer: Any) -> None:
        said = chunk.app_metadata
        order = self.message(wire.Order, b"" if said is None else said.to_pybytes())
        requests = wire.read_requests(chunk.data, self._vocabulary)
        progress = self._desk.ask(lambda engine: self._desk.take(engine, client, order, requests))
        completions = list(_drain(client.ended)) if client.numbers else []
        for key, _ in completions:
            del client.numbers[key]
        writer.write_with_metadata(wire.completions_batch(completions), str(progress).encode())

    def _version(self, _: Nothing) -> wire.Version:
        return wire.Version(version=self._desk.ask(lambda engine: engine.version))

    def _wake(self, nothing: Nothing) -> wire.Version:
        self._desk.ask(lambda engine: engine.wake())
        return self._version(nothing)

    def _sleep(self, nothing: Nothing) -> wire.Version:
        while not self._desk.ask(_sleep_when_idle):
            time.sleep(LOOK_SECONDS)
        return self._version(nothing)


def _sleep_when_idle(engine: VllmEngine) -> bool:
    idle = engine.idle
    if idle:
        engine.sleep()
    return idle


def _drain(ended: queue.SimpleQueue[tuple[int, Completion]]) -> Generator[tuple[int, Completion]]:
    """What has ended; waits a moment for the first."""
    try:
        yield ended.get(timeout=LOOK_SECONDS)
        while True:
            yield ended.get_nowait()
    except queue.Empty:
        return


def main() -> None:
    """Start the engine, listen, announce, serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True, help="folder with config.json and tokenizer")
    parser.add_argument("--announce", type=Path, required=True, help="file that tells clients address and token")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--memory-share", type=float, required=True)
    parser.add_argument("--parent", type=int, required=True, help="process with which the server ends")
    given = parser.parse_args()
    ends_with(given.parent)
    config, tokenizer = AutoConfig.from_pretrained(given.model, local_files_only=True), load_tokenizer(given.model)
    desk = Desk(VllmEngine(config, tokenizer, slots=given.slots, memory_share=given.memory_share))
    server = EngineServer(given.host, desk, config.vocab_size)
    server.endpoint.announce(given.announce)
    try:
        desk.serve()
    finally:
        traceback.print_exc()
        os._exit(1)  # Flight's threads wait for answers that will not come


if __name__ == "__main__":
    main()
