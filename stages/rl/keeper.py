"""A rank and its own shard: a thread tells it where the learners stand, also when it was started anew."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from data.threads import Worker
from stages.rl.messages import Shelved
from stages.rl.state import State
from stages.rl.store.client import Restarted, ShardClient

SECONDS = 0.5
"""Between two tellings of the same: so long a shard that was started anew knows nothing."""
CALL_SECONDS = 10.0
FAILURES = (Restarted, pa.ArrowException, OSError)
"""Of a call to a shard that has died, is not there yet, or knows nothing yet. It can be repeated."""


class Keeper:
    """Keeps the shard of this rank up to date. It tells nothing before the first `tell`."""

    def __init__(self, announced: Path) -> None:
        """`announced` is the shard's announcement."""
        self._teller, self._asker = ShardClient(announced, CALL_SECONDS), ShardClient(announced, CALL_SECONDS)
        self._state: State | None = None
        self._committed = 0
        self._players: dict[int, tuple[str, str]] = {}
        """Of groups that were ready, by position: the actor that has put it, and under which lease."""
        self._heard: State | None = None
        self._restored = False
        self._wake, self._ended = threading.Event(), False
        self._thread = Worker(self._run, "keeper")

    def tell(self, state: State) -> None:
        """Where the learners stand now. Returns at once."""
        self._state = state
        self._wake.set()

    def committed(self, state: State) -> None:
        """A checkpoint has this state, so nobody will ask for what is before its cursor. Returns at once."""
        self._committed, self._heard = state.cursor, None
        self._wake.set()
        for position in [position for position in list(self._players) if position < state.cursor]:
            self._players.pop(position, None)  # in place: the thread that collects adds to it

    def settle(self, seconds: float = CALL_SECONDS) -> None:
        """Wait until the shard has heard of what was last told, or for `seconds`."""
        end = time.monotonic() + seconds
        while self._heard is not self._state and time.monotonic() < end:
            time.sleep(0.01)

    def ready(self, missing: int = 0, enough: int = 0, seconds: float = 0.0) -> list[Shelved]:
        """What the shard has to be learned from; nothing as long as it does not answer.

        `missing` is how many groups all shards had too few of at the last look. Waits for `enough`, at most so many
        `seconds`. RuntimeError when nobody tells the shard where the learners stand any more.
        """
        self._thread.check()
        try:
            found = self._asker.ready(missing, enough, seconds)
            self._players.update({one.position: (one.member, one.lease) for one in found})
            return found
        except FAILURES:
            self._wake.set()
            return []

    def players(self, positions: Sequence[int]) -> list[tuple[str, str]]:
        """Actor and lease of the groups that were ready at these positions; "" of other shards. Forgets them."""
        return [self._players.pop(position, ("", "")) for position in positions]

    def close(self) -> None:
        """Tell it nothing more."""
        self._ended = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(SECONDS)
            self._wake.clear()
            if self._state is not None and not self._ended:
                self._say(self._state)

    def _say(self, state: State) -> None:
        try:
            if not self._restored:
                self._teller.restore(state.cursor, state.ahead, state.attempts, self._committed)
                self._restored = True
            # Also after a restore: what it goes by is where the learners stood when it was first asked for.
            self._teller.again(state.attempts)
            self._teller.done(state.cursor, state.ahead, self._committed)
            self._heard = state
        except Restarted:
            self._restored = False
            self._wake.set()
        except FAILURES:
            return
