"""What clients and shards say to each other beside `stages.rl.messages`."""

from pydantic import Field

from stages.rl.messages import Inventory, Message
from stages.rl.positions import Positions
from stages.rl.store.shelf import Decision

MOST_OFFERS = 64


class Offer(Message):
    """A group that is about to come, so that the shard can say no before it keeps it in memory."""

    position: int = Field(ge=0)
    attempt: int = Field(ge=0)
    whole: bool
    member: str = Field(max_length=64, pattern="^[ -~]*$")
    lease: str = Field(max_length=32, pattern="^[ -~]*$")
    """Its id."""
    samples: int = Field(ge=1)
    tokens: int = Field(ge=0)
    num_bytes: int = Field(ge=0)


class Offers(Message):
    """Descriptor of a put: its groups, in the order in which their batches come."""

    groups: tuple[Offer, ...] = Field(min_length=1, max_length=MOST_OFFERS)


class Answer(Message):
    """To an offer."""

    decision: Decision


class Answers(Message):
    """To each of the offers of a put."""

    decisions: tuple[Decision, ...]


class Take(Message):
    """Groups that a learner takes, in this order; or the half-played one of a position, for an actor."""

    start: str = ""
    """Of the shard that was restored; empty from all but its own learner."""
    keys: tuple[tuple[int, int], ...] = ()
    begun: int | None = None


class Restore(Message):
    """Where the learners stand."""

    cursor: int
    ahead: Positions
    attempts: dict[int, int]
    committed: int = 0
    """The cursor of the last checkpoint, to which they may have to go back."""
    id: str = Field(min_length=1, max_length=64)
    """Of this restore: the same when it is asked for again because it was not answered."""


class Restored(Message):
    """The answer; without an inventory the journal is still being read."""

    inventory: Inventory | None


class Ask(Message):
    """Any other call of a learner."""

    start: str


class Look(Ask):
    """For groups that are ready."""

    missing: int = Field(0, ge=0)
    """Groups that all shards together had too few of when the learner last looked."""
    enough: int = Field(0, ge=0)
    """Groups that are waited for, if need be."""
    seconds: float = Field(0.0, ge=0, le=1)
    """So long."""


class Again(Ask):
    """Positions to be played again."""

    attempts: dict[int, int]


class Done(Ask):
    """Positions that are done with."""

    cursor: int
    ahead: Positions
    committed: int = 0
    """See `Restore`."""


class Division(Message):
    """Which shard answers, and how many there are."""

    shard: int
    shards: int


class Nothing(Message):
    """Nothing to ask, or nothing to say but that it is done."""
