"""Who takes part, how each is doing, and why others are gone. Pure: the time is an argument.

A member that says nothing for `silent_seconds` is gone. One that comes back is a stranger and joins again.
"""

import math
from collections import deque

from stages.rl.messages import Join, Message, Rates, Score

MEMORY_SECONDS = 30.0
"""Rates are those of the last seconds, older ones fading by e in as many."""
MOST_GONE = 256
"""So many that are gone are remembered: those that went last."""


class MemberState(Message):
    """A member, as `qianka status` and the learner see it. Times are Unix times."""

    name: str
    role: str
    node: str
    supernode: str = ""
    job: str = ""
    since: float
    tokens_per_second: float = 0.0
    episodes_per_second: float = 0.0
    utilisation: float = 0.0
    """Share of the time in which its engine generated."""
    device: float | None = None
    delay: float = 0.0
    version: int = -1
    slots: int = 0
    in_flight: int = 0
    held: tuple[int, ...] = ()
    """Positions that it has leases of, for the coordinator after this one: it may go together with this one."""
    relay: bool = False
    trouble: str = ""
    gone: float | None = None
    """When it went; None while it is there."""
    why: str = ""
    """It went."""


class Member:
    """One that is there."""

    def __init__(self, join: Join, now: float, unix: float) -> None:
        self.join = join
        self.since, self.seen = now + unix, now
        self.rates = Rates()
        self.trouble = ""
        self.fresh = True
        """Whether it has not renewed since it joined."""
        self._seconds = self._tokens = self._episodes = self._busy = self._loads = 0.0

    def renew(self, rates: Rates, trouble: str, now: float) -> None:
        """It has reported; sums over time fade, so rates are those of late."""
        keep = math.exp(-rates.seconds / MEMORY_SECONDS)
        self._seconds = self._seconds * keep + rates.seconds
        self._tokens = self._tokens * keep + rates.tokens
        self._episodes = self._episodes * keep + rates.episodes
        self._busy = self._busy * keep + rates.busy
        self._loads = self._loads * keep + rates.busy * max(1, rates.in_flight)
        self.seen, self.rates, self.trouble, self.fresh = now, rates, trouble, False

    @property
    def speed(self) -> float | None:
        """Tokens a second of one sequence while the engine generates; None where nothing was measured.

        By sequence, since a member that is given less has a smaller batch, and would seem slow for that alone.
        """
        return self._tokens / self._loads if self._loads > 0 and self._tokens > 0 else None

    @property
    def utilisation(self) -> float:
        """Share of the time in which its engine generated."""
        return min(1.0, self._busy / self._seconds) if self._seconds else 0.0

    def state(self, held: tuple[int, ...] = (), relay: bool = False) -> MemberState:
        """For those who look at it."""
        seconds = self._seconds or math.inf
        return MemberState(
            name=self.join.member, role=self.join.role, node=self.join.node, supernode=self.join.supernode,
            job=self.join.job, since=self.since, tokens_per_second=self._tokens / seconds,
            episodes_per_second=self._episodes / seconds, utilisation=self.utilisation, device=self.rates.device,
            delay=self.rates.delay, version=self.rates.version, slots=self.rates.slots,
            in_flight=self.rates.in_flight, held=held, relay=relay, trouble=self.trouble,
        )  # fmt: skip


class Members:
    """All that take part."""

    def __init__(self, silent_seconds: float, gone: tuple[MemberState, ...] = (), unix: float = 0.0) -> None:
        """Times are of a clock that nobody sets; with `unix` added they are Unix times, as in a `MemberState`."""
        self._silent_seconds, self._unix = silent_seconds, unix
        self.living: dict[str, Member] = {}
        self.gone = deque(gone, maxlen=MOST_GONE)

    def join(self, join: Join, now: float) -> bool:
        """A member comes. Returns whether one of its name was there: the same one, started anew."""
        known = self.living.get(join.member)
        if known and join.start and known.join.start == join.start:
            return False
        self.living.pop(join.member, None)
        if known and not known.fresh:
            self._bury(known, "started anew", now)
        self.living[join.member] = Member(join, now, self._unix)
        return known is not None and not known.fresh

    def leave(self, name: str, why: str, now: float) -> None:
        """It goes, or is gone, for that reason."""
        member = self.living.pop(name, None)
        if member:
            self._bury(member, why, now)

    def expire(self, now: float) -> dict[str, str]:
        """Those that were silent for too long, and what is said of each; they are members no more."""
        why = f"silent for {self._silent_seconds:.0f} s"
        silent = {name: why for name, member in self.living.items() if now - member.seen > self._silent_seconds}
        for name in silent:
            self.leave(name, why, now)
        return silent

    def _bury(self, member: Member, why: str, now: float) -> None:
        state = member.state()
        self.gone.append(state.model_copy(update={"gone": now + self._unix, "why": why, "in_flight": 0}))


class Scored(Score):
    """A score of the evaluator, and when it came."""

    when: float
    """Unix time."""
