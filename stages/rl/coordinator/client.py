"""The coordinator as its members see it. They survive its restarts: they say again what it has to know."""

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from data.threads import Worker
from data.transport.client import Caller, Unreachable
from data.transport.endpoint import Endpoint
from stages.rl.coordinator.share import AHEAD
from stages.rl.messages import Ended, Join, Lease, Message, Orders, Rates, Renewal, Score, Source, Watch

CALL_SECONDS = 10.0
RETRY_SECONDS = 0.25, 1.0
"""Between two tries to reach a coordinator that does not answer: at first, at most."""
SHORTEST_SECONDS = 0.1
"""Between two renewals, however much there is to say: prompts that come together are cheaper to begin."""


class Membership:
    """A member's leases, orders and reports. A thread of its own renews; another waits for the learner."""

    def __init__(
        self,
        path: Path,
        join: Join,
        still: Callable[[], str] = lambda: "",
        want: Callable[[Source | None], None] = lambda _: None,
    ) -> None:
        """`path` is the coordinator's announcement, ATTEMPT/endpoints/coordinator.json.

        As long as `still` says why, it renews no more, so that others get what a member holds that hangs. `want` is
        called with the weights that it shall have as soon as they are known.
        """
        self._still, self._new_weights = still, want
        self._path, self._caller = path, Caller(path)
        self._join = join.model_copy(update={"start": secrets.token_hex(8)})
        self._lock = threading.Lock()
        self._wake, self._news = threading.Event(), threading.Event()
        self._stepped, self._told = threading.Event(), threading.Event()
        """The learner has gone on; what the coordinator says of that is known here."""
        self._held: dict[str, Lease] = {}
        self._fresh: list[Lease] = []
        self._lost: set[str] = set()
        self._ended: list[Ended] = []
        self._want = 0
        self._rates = Rates()
        self._relay: Endpoint | None = None
        self._trouble = ""
        self._leaving = ""
        self._orders = Orders()
        self._answered = time.monotonic()
        self._thread, self._watcher = Worker(self._run, "membership"), Worker(self._watch, "watch")

    # What the member does

    def take(self, room: int) -> list[Lease]:
        """Leases that came since the last call, at most `room`, which is the prompts that it could begin now."""
        with self._lock:
            taken, self._fresh = self._fresh[:room], self._fresh[room:]
            more = room - len(taken) > self._want
            self._want = room - len(taken)
        if more:
            self._wake.set()
        return taken

    def lost(self) -> set[str]:
        """Ids of leases that others have now, each told once: it may stop playing them."""
        with self._lock:
            lost, self._lost = self._lost, set()
        return lost

    def ended(self, id: str, how: Literal["stored", "handed back", "failed"], why: str = "") -> None:
        """A lease is over. Of one that is lost there is nothing to say, and saying it does no harm."""
        with self._lock:
            self._ended.append(Ended(id=id, how=how, why=why))
        self._wake.set()

    def report(self, rates: Rates) -> None:
        """Add to what the next renewal reports: seconds, tokens, episodes and busy add up, the rest is the newest."""
        with self._lock:
            sums = {key: getattr(self._rates, key) + getattr(rates, key) for key in _SUMS}
            self._rates = rates.model_copy(update=sums)

    def listens(self, relay: Endpoint | None) -> None:
        """Where its relay hands weights on. Called between steps of an engine, so said at once only where new."""
        if relay != self._relay:
            self._relay = relay
            self._wake.set()

    def complain(self, trouble: str) -> None:
        """What ails it, until it says something else; "" takes it back."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._wake.set()

    def wait(self, seconds: float) -> bool:
        """Wait for new leases or other orders. Returns whether there are any."""
        news = self._news.wait(seconds)
        self._news.clear()
        return news

    def close(self, why: str, seconds: float = 5.0) -> None:
        """Leave, politely: what is held goes to others at no cost. Gives up after `seconds`."""
        self._leaving = why
        self._wake.set()
        self._thread.join(seconds)

    # What it is told

    @property
    def source(self) -> Source | None:
        """The weights that it shall have."""
        return self._orders.source

    @property
    def cursor(self) -> int:
        """All positions before it are done with."""
        return self._orders.cursor

    @property
    def relays(self) -> bool:
        """Whether it shall hand weights on to its supernode."""
        return self._orders.relay

    @property
    def leave(self) -> str:
        """Why it shall end, such as that nobody speaks for it any more; "" for going on."""
        return self._thread.trouble or self._watcher.trouble or self._orders.leave

    @property
    def silence(self) -> float:
        """Seconds since the coordinator last answered."""
        return time.monotonic() - self._answered

    # The thread

    def _run(self) -> None:
        stranger, delay, retries = True, 0.0, pauses()
        while True:
            self._wake.clear()
            began = time.monotonic()
            last = self._leaving
            if not last and (still := self._still()):
                if self._trouble == still:  # it is said already
                    self._wake.wait(1.0)
                    continue
                self._trouble = still
            try:
                if stranger:
                    self._caller.call("join", self._join, Message)
                orders, stranger = self._renew(stranger, delay, last), False
            except Unreachable:
                if last and self.silence > CALL_SECONDS:
                    return
                time.sleep(next(retries))
                continue
            retries = pauses()
            delay = time.monotonic() - began
            self._answered = time.monotonic()
            stranger = orders.stranger
            if last and not stranger:
                return
            if not stranger and not self._stepped.wait(SHORTEST_SECONDS):
                self._wake.wait(max(0.0, orders.seconds - delay - SHORTEST_SECONDS))
            self._stepped.clear()

    def _watch(self) -> None:
        """Wait for the learner, and renew when it has gone on: prompts and weights are there then."""
        caller, retries = Caller(self._path), pauses()
        while not self._leaving:
            self._told.wait(CALL_SECONDS)
            self._told.clear()
            number = self._orders.watch
            if number is None:
                continue
            try:
                caller.call("watch", Watch(number=number), Message)
                retries = pauses()
            except Unreachable:
                time.sleep(next(retries))
            self._wake.set()
            self._stepped.set()

    def _renew(self, full: bool, delay: float, leaving: str) -> Orders:
        with self._lock:
            told, rates = tuple(self._ended), self._rates.model_copy(update={"delay": delay})
            over = {ended.id for ended in told}
            renewal = Renewal(
                member=self._join.member, holding=tuple(id for id in self._held if id not in over),
                leases=tuple(self._held.values()) if full else (), ended=told,
                want=max(0, self._want + AHEAD - len(self._fresh)), rates=rates, relay=self._relay,
                trouble=self._trouble, leaving=leaving,
            )  # fmt: skip
        orders = self._caller.call("renew", renewal, Orders)
        if not orders.stranger:
            self._heard(orders, told, rates)
        return orders

    def _heard(self, orders: Orders, told: Sequence[Ended], rates: Rates) -> None:
        """What was said has arrived, and is not said again."""
        with self._lock:
            for ended in told:
                self._held.pop(ended.id, None)
            del self._ended[: len(told)]
            for id in orders.lost:
                self._held.pop(id, None)
            self._lost.update(orders.lost)
            self._fresh = [lease for lease in self._fresh if lease.id not in orders.lost] + list(orders.leases)
            self._held.update({lease.id: lease for lease in orders.leases})
            left = {key: max(0, getattr(self._rates, key) - getattr(rates, key)) for key in _SUMS}
            self._rates = self._rates.model_copy(update=left)
            news = orders.leases or orders.lost or orders.leave or orders.source != self._orders.source
            self._orders = orders
        self._new_weights(orders.source)
        self._told.set()
        if news or orders.relay:
            self._news.set()


def pauses() -> Iterator[float]:
    """Seconds between two tries, doubling; by chance less, so that not all members call a new coordinator at once."""
    pause, longest = RETRY_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(2 * pause, longest)


def send_score(path: Path, score: Score) -> None:
    """The evaluator has found something. Raises Unreachable."""
    Caller(path).call("score", score, Message)


_SUMS = ("seconds", "tokens", "episodes", "busy")
