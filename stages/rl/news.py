"""What the learners know of the actors: what the coordinator has last said. Rank 0 alone hears it."""

from collections.abc import Sequence

from data.job import Job
from stages.rl.coordinator.learners import Learners
from stages.rl.coordinator.members import MemberState
from stages.rl.coordinator.status import Status
from stages.rollout.parity import ParityError

QUIET_SECONDS = 10.0
"""That learners wait before they say so."""
ENDS = {error.__name__: error for error in (ParityError, ValueError)}
"""Troubles of actors that end the run, as they would in synchronous mode: no other actor would do better."""


class News:
    """Of the actors and the evaluator; before the first answer, and on other ranks than 0, there is none."""

    def __init__(self, learners: Learners | None) -> None:
        self._learners = learners

    def status(self) -> Status | None:
        """What the coordinator has last said."""
        return self._learners.status() if self._learners else None

    def check(self) -> None:
        """Raise what ends the run of that which an actor has told of itself."""
        status = self.status()
        for member, trouble in status.troubles.items() if status else ():
            name, _, why = trouble.partition(": ")
            if name in ENDS:
                raise ENDS[name](f"{why} (told by actor {member})")

    def members(self) -> Sequence[MemberState]:
        """The actors and the evaluator."""
        status = self.status()
        return status.members if status else ()

    def given_up(self) -> Sequence[int]:
        """Positions that the coordinator has set aside."""
        status = self.status()
        return sorted(status.set_aside) if status else ()

    def reasons(self) -> Sequence[str]:
        """Why those positions, and the last ones before them, were set aside."""
        status = self.status()
        return [*status.reasons.values(), *status.set_aside.values()] if status else ()

    def metrics(self) -> dict[str, float]:
        """How the actors are, and what the evaluator has found last."""
        status = self.status()
        return metrics_of(status) if status else {}

    def left_over(self) -> str:
        """What was begun and will not be learned from, in words; "" where there is nothing."""
        status = self.status()
        return left_over(status) if status else ""


def metrics_of(status: Status) -> dict[str, float]:
    """Of a step."""
    metrics: dict[str, float] = {
        "actors": status.actors,
        "actors_utilisation": status.utilisation,
        "actors_tokens_per_second": status.tokens_per_second,
        "episodes_per_second": status.episodes_per_second,
    }
    if status.scores:
        newest = max(status.scores, key=lambda found: found.version)
        metrics |= {"evaluator_success": newest.success, "evaluator_version": newest.version}
    return metrics


def left_over(status: Status) -> str:
    """What waits and what is being played; "" where there is nothing."""
    begun = status.leased + status.partial
    return f"{status.ready} groups that waited, {begun} that were being played" if begun + status.ready else ""


class Patience:
    """Says for what the learners wait: in the log once, and again when that has changed."""

    def __init__(self, news: News, job: Job) -> None:
        self.news, self.job = news, job
        self.said = ""

    def waits(self, there: int, wanted: int, seconds: float) -> str:
        """They have waited for `seconds`, and `there` of the `wanted` groups are there. In words, on rank 0."""
        groups = f"{there} of {wanted} groups are there"
        self.job.beat(f"waiting for actors: {groups}")
        if not self.job.is_first or seconds < QUIET_SECONDS:
            return ""
        status = self.news.status()
        if status is None:
            why = "the coordinator has not answered yet"
        else:
            number = f"{status.actors} actor{' plays' if status.actors == 1 else 's play'}"
            why = number if status.actors else "no actor is there"
        if why != self.said:
            print(f"rl: the learners wait: {groups}, {why}", flush=True)
            self.said = why
        return f"waiting for {seconds:.0f} s: {groups}, {why}"

    def over(self) -> None:
        """A batch is there."""
        if self.said:
            print("rl: the learners go on", flush=True)
            self.said = ""
