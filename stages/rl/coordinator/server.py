"""The coordinator's Flight server: actions whose bodies and answers are messages, one at a time, and a clock."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight
from pydantic import ValidationError

from data.transport.endpoint import TokenCheck
from stages.rl.coordinator.coordinator import Coordinator
from stages.rl.coordinator.table import write_table
from stages.rl.messages import Advance, Inventory, Join, Message, Renewal, Score
from stages.rl.store.client import Restarted

SECONDS = 1.0
"""Between two sweeps, two polls of a shard, two tables."""

M = TypeVar("M", bound=Message)


class Why(Message):
    """Why the run ends."""

    why: str


class CoordinatorServer(flight.FlightServerBase):
    """Actions: join, renew, advance, score, status, end."""

    def __init__(self, location: str, token: str, coordinator: Coordinator) -> None:
        super().__init__(location, middleware={"token": TokenCheck(token)})
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._actions: dict[str, Callable[[bytes, float], Message]] = {
            "join": lambda body, now: coordinator.join(_read(Join, body), now),
            "renew": lambda body, now: coordinator.renew(_read(Renewal, body), now),
            "advance": lambda body, now: coordinator.advance(_read(Advance, body), now),
            "score": lambda body, now: coordinator.score(_read(Score, body), now),
            "status": lambda _, now: coordinator.status(now),
            "end": lambda body, _: coordinator.end(_read(Why, body).why),
        }

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        """See the class. ArrowInvalid for what is no such message."""
        answer = self._actions.get(action.type)
        if answer is None:
            raise pa.ArrowInvalid(f"there is no action {action.type!r}; there are {', '.join(self._actions)}")
        with self._lock:
            message = answer(action.body.to_pybytes(), time.time())
        yield message.model_dump_json().encode()

    def look_after(self, folder: Path, shards: Sequence[Callable[[], Inventory]]) -> None:
        """Start the threads that ask each shard for what it has, and that sweep and write the table once a second."""
        for number, ask in enumerate(shards):
            threading.Thread(target=self._poll, args=(number, ask), name=f"shard {number}", daemon=True).start()
        threading.Thread(target=self._sweep, args=(folder,), name="sweep", daemon=True).start()

    def _poll(self, number: int, ask: Callable[[], Inventory]) -> None:
        """A shard that does not answer keeps what it had; whoever waits for it waits on."""
        while True:
            asked = time.time()
            try:
                inventory = ask()
            except (Restarted, pa.ArrowException, OSError):
                pass
            else:
                with self._lock:
                    self._coordinator.inventory(number, inventory, asked)
            time.sleep(max(0.0, asked + SECONDS - time.time()))

    def _sweep(self, folder: Path) -> None:
        while True:
            with self._lock:
                self._coordinator.sweep(time.time())
                table = self._coordinator.table(time.time())
            write_table(folder, table)
            time.sleep(SECONDS)


def _read(kind: type[M], body: bytes) -> M:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise pa.ArrowInvalid(f"no {kind.__name__}: {error.errors()[0]['msg']}") from None
