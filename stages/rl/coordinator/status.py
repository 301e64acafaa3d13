"""What the learners are told: the answer to each `advance` and `status`."""

from pydantic import Field

from stages.rl.coordinator.members import MemberState, Scored
from stages.rl.messages import Message


class Status(Message):
    """How the actors are, and what waits."""

    start: str
    """Of the coordinator's process; a new one has to be told everything again."""
    actors: int = 0
    tokens_per_second: float = 0.0
    """Over all actors."""
    episodes_per_second: float = 0.0
    utilisation: float = 0.0
    """Mean over the actors: share of the time in which their engines generated."""
    leased: int = 0
    """Prompts that actors have."""
    partial: int = 0
    """Groups in the shards that are half played."""
    ready: int = 0
    """Groups in the shards that wait to be learned from."""
    taken: int = 0
    room: int = 0
    """New groups that the window still has room for."""
    shards: int = 0
    """That have answered of late."""
    members: tuple[MemberState, ...] = ()
    troubles: dict[str, str] = Field(default_factory=dict[str, str])
    """What ails members, by name, also of those that have gone with it."""
    set_aside: dict[int, str] = Field(default_factory=dict[int, str])
    """Positions that were tried too often, and why: the learner has to count them as done with."""
    reasons: dict[int, str] = Field(default_factory=dict[int, str])
    """The same of the last ones that it has counted."""
    scores: tuple[Scored, ...] = ()
    """Of the evaluator, the newest last."""
