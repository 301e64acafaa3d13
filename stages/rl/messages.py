"""What actors, learners, shards and coordinator tell each other: JSON that is checked on arrival, and never a pickle.

A *position* is a place in the endless stream of prompts: one permutation of the train split after another, each an
epoch (`stages.rl.prompts`). A *group* is what is played at a position: the samples of its prompt. Group and position
have an *attempt*, which counts how often the position's samples were thrown away before. (position, attempt) names a
group for good: its shard takes it once, however often it is put.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from data.transport.endpoint import Endpoint
from stages.rl.positions import Positions


class Message(BaseModel):
    """One of them. ValueError (pydantic's) for what is no such message."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Lease(Message):
    """A prompt that one actor may play. Leases save work; what is trained on, the shards decide."""

    id: str = Field(max_length=32)
    """Of this lease alone."""
    position: int = Field(ge=0)
    attempt: int = Field(ge=0)
    partial: bool = False
    """Whether its shard has the beginning, which another actor has played."""


class Source(Message):
    """Weights that an actor shall have, and where it gets them."""

    version: int
    digest: str
    """Of their bytes; versions of two starts of the learner may have one number."""
    num_bytes: int
    endpoint: Endpoint
    """A relay of the actor's supernode, or the learner's own server."""
    probe: str = ""
    """JSON: prompts, and what the policy says of each, which the actor's engine has to say as well."""


class Rates(Message):
    """What an actor has done since its last renewal, and how it is."""

    seconds: float = 0.0
    tokens: int = 0
    episodes: int = 0
    busy: float = 0.0
    """Seconds in which its engine generated."""
    device: float | None = None
    """Utilisation of its card by others' measure, 0 to 1; None where nobody measures it."""
    delay: float = 0.0
    """Seconds that the last call to the coordinator took."""
    version: int = -1
    """Of its weights."""
    slots: int = 0
    """Sequences that its engine has room for."""
    in_flight: int = 0
    """Sequences that it plays."""


class Join(Message):
    """An actor, an evaluator or a relay comes."""

    member: str
    """Its name: of the same process always the same, of no other one."""
    role: Literal["actor", "evaluator"] = "actor"
    node: str
    supernode: str = ""
    job: str = ""
    """Its Slurm job and array task, or its process."""
    samples_at_once: int = 1
    """Prompts that its engine has room for."""
    start: str = ""
    """Of its process: one that joins again because an answer was lost is no other one."""


class Ended(Message):
    """A lease that an actor has no more."""

    id: str
    how: Literal["stored", "handed back", "failed"]
    """stored: its group is in the store, whole; handed back: it is to be given to another, perhaps half played; failed:
    it could not be played, for a reason that lies in the prompt."""
    why: str = ""


class Renewal(Message):
    """The sign of life of a member, with all that it has to say."""

    member: str
    holding: tuple[str, ...] = ()
    """Ids of all leases that it has; the coordinator forgets those that it does not name."""
    leases: tuple[Lease, ...] = ()
    """The same in full, when the coordinator has asked for it (`Orders.stranger`)."""
    ended: tuple[Ended, ...] = ()
    want: int = 0
    """Prompts that it could begin now."""
    rates: Rates = Rates()
    relay: Endpoint | None = None
    """Where it hands weights on, if it was told to."""
    trouble: str = ""
    """What ails it, such as a source that does not answer."""
    leaving: str = ""
    """Why it goes, with this message, for good."""


class Score(Message):
    """What the evaluator found."""

    version: int
    prompts: int
    success: float
    seconds: float


class Orders(Message):
    """The answer to a renewal."""

    leases: tuple[Lease, ...] = ()
    """New ones."""
    lost: tuple[str, ...] = ()
    """Ids of leases that it no longer has: it may stop playing them."""
    source: Source | None = None
    """None as long as no learner has published weights."""
    cursor: int = 0
    """All positions before it are done with, as the learner said when it published these weights, or later."""
    relay: bool = False
    """Hand weights on to the other members of your supernode."""
    stranger: bool = False
    """The coordinator does not know you, as after its own restart: join again, and say what you hold."""
    leave: str = ""
    """Why it shall end, such as that the run is done."""
    seconds: float = 1.0
    """Until the next renewal, at the latest."""
    watch: int | None = None
    """Number of the learner's last step forward, where there are so few members that each may wait for the next."""


class Watch(Message):
    """A member waits for the learner's next step forward, which opens the window."""

    number: int
    """Of the last that it has heard of."""


class End(Message):
    """A learner tells the coordinator that no more is played, and why."""

    why: str


class Advance(Message):
    """A learner tells the coordinator of a new version, and of what it has trained."""

    version: int
    source: Source
    window: int
    """Groups that may be out, waiting, or learned from at the moment."""
    cursor: int
    """All positions before this one are done with: trained or set aside."""
    ahead: Positions = ()
    """Those behind it that are as well."""
    attempts: dict[int, int] = Field(default_factory=dict[int, int])
    """Attempt of each position that is not done with and was thrown away before."""
    excused: dict[int, int] = Field(default_factory=dict[int, int])
    """How many of those were no fault of the position: they do not count among its tries."""
    positions_set_aside: int = 0
    """Positions that were set aside so far."""


class Shelved(Message):
    """A group as its shard knows it."""

    position: int
    attempt: int
    state: Literal["partial", "ready", "taken"]
    samples: int = 0
    tokens: int = 0
    oldest: int = -1
    """The oldest version of its tokens."""
    num_bytes: int = 0
    played: float = 0.0
    """Unix time at which it was put."""
    member: str = ""
    """The actor that has put it."""
    lease: str = ""
    """Under which it was played."""


class Inventory(Message):
    """What a shard has, of positions that are not done with."""

    start: str
    """Of the shard's process; another one means that all is said anew."""
    shelved: tuple[Shelved, ...]
    num_bytes: int
    room: int
    """Bytes until it takes nothing more."""
