"""The coordinator's Flight server: actions whose bodies and answers are messages, one at a time, and a clock."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from data.transport.client import Unreachable
from data.transport.server import Action, Server
from stages.rl.coordinator.coordinator import Coordinator
from stages.rl.coordinator.table import write_table
from stages.rl.messages import Advance, End, Inventory, Join, Message, Orders, Renewal, Score, Watch
from stages.rl.store.client import Restarted

SECONDS = 1.0
"""Between two sweeps, two polls of a shard, two tables."""

WATCH_SECONDS = 1.0
"""The longest that a call waits for the learner."""

M = TypeVar("M", bound=Message)


class CoordinatorServer(Server):
    """Actions: join, renew, watch, advance, score, status, end."""

    def __init__(self, host: str, coordinator: Coordinator, folder: Path, *, tls: bool = False) -> None:
        """`folder`, the attempt's, gets the table."""
        self._coordinator, self._folder = coordinator, folder
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._stepped = threading.Condition(self._lock)
        actions = {
            "join": self._action(Join, coordinator.join),
            "renew": Action(Renewal, self._renew),
            "watch": Action(Watch, self._watch),
            "advance": self._action(Advance, coordinator.advance),
            "score": self._action(Score, coordinator.score),
            "status": self._action(Message, lambda _, now: coordinator.status(now)),
            "end": self._action(End, lambda end, _: coordinator.end(end.why)),
        }
        super().__init__(host, actions, tls=tls)

    def _action(self, kind: type[M], answer: Callable[[M, float], BaseModel]) -> Action[M]:
        def locked(message: M) -> BaseModel:
            with self._stepped:
                found = answer(message, time.monotonic())
                self._stepped.notify_all()  # those that watch look whether it was a step
                return found

        return Action(kind, locked)

    def _renew(self, renewal: Renewal) -> Orders:
        """What ails one that goes is in the table before it goes: the learner has to hear of it, whoever tells it."""
        with self._lock:
            orders = self._coordinator.renew(renewal, time.monotonic())
        if renewal.leaving and renewal.trouble:
            self._write()
        return orders

    def _watch(self, watch: Watch) -> Message:
        with self._stepped:
            self._stepped.wait_for(lambda: self._coordinator.steps != watch.number, WATCH_SECONDS)
        return Message()

    def _write(self) -> None:
        """The calls go on while the disk is slow."""
        with self._writing:
            with self._lock:
                table = self._coordinator.table(time.monotonic())
            write_table(self._folder, table)

    def look_after(self, shards: Sequence[Callable[[], Inventory]]) -> None:
        """Start the threads that ask each shard for what it has, and that sweep and write the table once a second."""
        for number, ask in enumerate(shards):
            threading.Thread(target=self._poll, args=(number, ask), name=f"shard {number}", daemon=True).start()
        threading.Thread(target=self._sweep, name="sweep", daemon=True).start()

    def _poll(self, number: int, ask: Callable[[], Inventory]) -> None:
        """A shard that does not answer keeps what it had; whoever waits for it waits on."""
        while True:
            asked = time.monotonic()
            try:
                inventory = ask()
            except (Restarted, Unreachable):
                pass
            else:
                with self._lock:
                    self._coordinator.inventory(number, inventory, asked)
            time.sleep(max(0.0, asked + SECONDS - time.monotonic()))

    def _sweep(self) -> None:
        """A table that cannot be written is not worth an end: nobody would expire. It is said once, and tried again."""
        said = ""
        while True:
            with self._lock:
                self._coordinator.sweep(time.monotonic())
            try:
                self._write()
            except OSError as error:
                if str(error) != said:
                    said = str(error)
                    print(f"the table of the actors could not be written: {said}", flush=True)
            time.sleep(SECONDS)
