"""What the coordinator answers. Pure: the time is an argument; its server calls it, one call at a time."""

from collections import deque

from stages.rl.config import AsynchronousConfig
from stages.rl.coordinator.leases import Leases
from stages.rl.coordinator.members import Member, Members, Scored
from stages.rl.coordinator.share import AHEAD, Load, quotas
from stages.rl.coordinator.status import Status
from stages.rl.coordinator.table import Table
from stages.rl.messages import Advance, Inventory, Join, Message, Orders, Renewal, Score, Source
from stages.rl.weights.routes import Routes

GRACE_SECONDS = 3.0
"""So long a new coordinator waits for what the members of the last one hold."""
RENEW_SECONDS = 1.0
"""Between two signs of life, where there are few members."""
LONGEST_SECONDS = 2.5
"""The same where there are many: less than `GRACE_SECONDS`, in which a new coordinator hears of all."""
SIGNS_IN_A_LEASE = 6
"""At least: a member that was slow a few times is not gone."""
CALLS_A_SECOND = 200
"""Of all members together, half a millisecond of CPU each; who has something to say does not wait for them."""
HUNGRY_SECONDS = 0.2
"""Between two renewals of an actor that wants more than it gets, where there are few."""
WATCHERS = 64
"""Members of which each may have a call that waits for the learner; of more the calls would be too many threads."""
HUNGRY_CALLS_A_SECOND = 600
"""Of hungry actors all together."""
SCORES = 64
"""So many of the evaluator's scores are kept."""


class Coordinator:
    """Members, leases and routes of a run."""

    def __init__(
        self, config: AsynchronousConfig, shards: int, home: str, start: str, before: Table, now: float,
        learners: str = "", unix: float = 0.0,
    ) -> None:  # fmt: skip
        """`home` is the learner's supernode; `before` is what the last coordinator has left behind.

        `learners` names the start of the learners that it serves. Times are of a clock that nobody sets; with `unix`
        added they are Unix times, which others are told.
        """
        self.leases = Leases(
            start, shards, config.lease_seconds, config.max_attempts, drop=config.stale == "drop",
            max_staleness=None if config.stale == "keep" else config.max_staleness,
            losses=before.losses, set_aside=before.set_aside,
            expected={state.name for state in before.members if state.role == "actor"}, grace=now + GRACE_SECONDS,
        )  # fmt: skip
        self.leases.waiting.reasons, self._positions_set_aside = dict(before.reasons), before.positions_set_aside
        self.members = Members(config.lease_seconds, before.gone, unix)
        # What ailed members under an earlier start of the learners is told no more: it would end each restart.
        same = before.learners == learners
        self._learners, self._since = learners, before.since if same and before.since is not None else now + unix
        self._before = {
            state.name: state if same else state.model_copy(update={"trouble": ""}) for state in before.members
        }
        self._lease_seconds = config.lease_seconds
        self._unheard = now + config.lease_seconds
        self._routes = Routes(home)
        self._start, self._unix = start, unix
        self._source: Source | None = None
        self._cursor = 0
        self.steps = 0
        """Of the learner, forward; its end is one too."""
        self._scores = deque(before.scores, maxlen=SCORES)
        self._quotas: dict[str, int] = {}
        self._end = ""

    def join(self, join: Join, now: float) -> Message:
        """A member comes, or comes again."""
        if self.members.join(join, now):
            self.leases.lost(join.member, "started anew")
        before = self._before.pop(join.member, None)
        if before:
            self.members.living[join.member].since = before.since
        self._routes.join(join.member, join.supernode)
        return Message()

    def renew(self, renewal: Renewal, now: float) -> Orders:
        """A sign of life, answered with all that the member has to know."""
        name = renewal.member
        member = self.members.living.get(name)
        if member is None:
            return Orders(stranger=True, leave=self._end)
        if member.fresh:
            self.leases.adopt(name, renewal.leases, now)
        member.renew(renewal.rates, renewal.trouble, now)
        for ended in renewal.ended:
            self.leases.ended(name, ended, now)
        lost = self.leases.renew(name, renewal.holding, now)
        if renewal.leaving:
            self._leaves(name, renewal.leaving, now)
            return Orders(lost=lost, leave="as it said")
        if renewal.trouble:
            self._routes.doubt(name)
        self._routes.listens(name, renewal.relay)
        given = () if self._end else self.leases.grant(name, self._allowed(member, renewal.want), now)
        return Orders(
            leases=given, lost=lost, source=self._source and self._routes.source(name, self._source),
            cursor=self._cursor, relay=self._routes.relays(name), leave=self._end,
            seconds=self._seconds(hungry=len(given) < renewal.want),
            watch=self.steps if len(self.members.living) <= WATCHERS else None,
        )  # fmt: skip

    def advance(self, advance: Advance, now: float) -> Status:
        """The learner has gone on, or says again where it is."""
        self.leases.advance(advance)
        if (advance.source.version, advance.cursor) != (self._source and self._source.version, self._cursor):
            self.steps += 1
        self._source, self._cursor, self._positions_set_aside = (
            advance.source,
            advance.cursor,
            advance.positions_set_aside,
        )
        self._share()
        return self.status(now)

    def score(self, score: Score, now: float) -> Message:
        """The evaluator has found something."""
        self._scores.append(Scored(when=now + self._unix, **score.model_dump()))
        return Message()

    def end(self, why: str) -> Message:
        """No more is played: each member is told to go when it calls next."""
        self._end = why
        self.steps += 1
        return Message()

    def inventory(self, shard: int, inventory: Inventory, asked: float) -> None:
        """What a shard has."""
        self.leases.inventory(shard, inventory, asked)

    def sweep(self, now: float) -> None:
        """Once a second: who is gone, what is given out again, and how much each may have."""
        for name, why in self.members.expire(now).items():
            self.leases.lost(name, why)
            self._routes.leave(name)
        self.leases.expire(now)
        if self._before and now > self._unheard and self.leases.ready(now):
            why = "not heard of since the coordinator was replaced"
            for state in self._before.values():
                self.leases.lost_before(state.name, state.held)
                self.members.gone.append(state.model_copy(update={"gone": now + self._unix, "why": why, "held": ()}))
            self._before = {}
        self._share()

    def _share(self) -> None:
        """How much each may have of what the window has room for."""
        waiting = self.leases.facts.count("ready") + self.leases.facts.count("taken")
        prompts = self.leases.room + len(self.leases.promises.leased) if waiting or self.members.living else 0
        self._quotas = quotas({name: _load(member) for name, member in self._actors().items()}, prompts)

    def status(self, now: float) -> Status:
        """How the run is."""
        actors = {name: member.state(self.leases.held(name)) for name, member in self._actors().items()}
        leases, facts, count = self.leases, self.leases.facts, max(1, len(actors))
        return Status(
            start=self._start, actors=len(actors), room=leases.room, shards=facts.heard,
            tokens_per_second=sum(one.tokens_per_second for one in actors.values()),
            episodes_per_second=sum(one.episodes_per_second for one in actors.values()),
            utilisation=sum(one.utilisation for one in actors.values()) / count,
            leased=len(leases.promises.leased), partial=facts.count("partial"), ready=facts.count("ready"),
            taken=facts.count("taken"), members=self.table(now).members,
            troubles=self._troubles(), set_aside=dict(leases.waiting.set_aside), reasons=dict(leases.waiting.reasons),
            scores=tuple(self._scores),
        )  # fmt: skip

    def table(self, now: float) -> Table:
        """For `qianka status`, and for the coordinator after this one."""
        waiting = self.leases.waiting
        states = [
            member.state(self.leases.held(name), self._routes.relays(name))
            for name, member in self.members.living.items()
        ]
        return Table(
            written=now + self._unix, learners=self._learners, since=self._since,
            members=(*states, *self._before.values()), gone=tuple(self.members.gone),
            losses=dict(waiting.losses), set_aside=dict(waiting.set_aside), reasons=dict(waiting.reasons),
            positions_set_aside=self._positions_set_aside, scores=tuple(self._scores),
        )  # fmt: skip

    def _actors(self) -> dict[str, Member]:
        return {name: member for name, member in self.members.living.items() if member.join.role == "actor"}

    def _leaves(self, name: str, why: str, now: float) -> None:
        self.leases.leave(name)
        self.members.leave(name, why, now)
        self._routes.leave(name)

    def _allowed(self, member: Member, want: int) -> int:
        name = member.join.member
        if member.join.role != "actor":
            return 0
        quota = self._quotas.get(name, member.join.samples_at_once + AHEAD)
        return max(0, min(want, quota - len(self.leases.held(name))))

    def _seconds(self, hungry: bool) -> float:
        members = len(self.members.living)
        if hungry:
            return min(RENEW_SECONDS, max(HUNGRY_SECONDS, members / HUNGRY_CALLS_A_SECOND))
        longest = min(LONGEST_SECONDS, self._lease_seconds / SIGNS_IN_A_LEASE)
        return min(longest, max(RENEW_SECONDS, members / CALLS_A_SECOND))

    def _troubles(self) -> dict[str, str]:
        late = [state for state in self.members.gone if state.gone is not None and state.gone >= self._since]
        found = {state.name: state.trouble for state in (*late, *self._before.values()) if state.trouble}
        return found | {name: member.trouble for name, member in self.members.living.items() if member.trouble}


def _load(member: Member) -> Load:
    return Load(
        member.join.samples_at_once + AHEAD, member.speed, member.utilisation, member.rates.device, member.rates.delay
    )  # fmt: skip
