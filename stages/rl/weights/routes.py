"""Who hands weights on within a supernode, and where each member gets them. Pure: no clock, no call, no thread.

The slow links between supernodes carry a version once for each of them: one member of a supernode is appointed its
relay, and the others wait for it. The learner's own supernode has none.
"""

from dataclasses import dataclass, field

from data.transport.endpoint import Endpoint
from stages.rl.messages import Source


@dataclass
class _Place:
    """What is known of a supernode."""

    members: list[str] = field(default_factory=list[str])
    """In the order in which they would be appointed."""
    endpoint: Endpoint | None = None
    """Of the first one's relay, once it listens."""
    doubts: set[str] = field(default_factory=set[str])
    """Members that cannot use it."""


class Routes:
    """The relays of a run."""

    def __init__(self, home: str) -> None:
        """`home` is the learner's supernode."""
        self._home = home
        self._places: dict[str, _Place] = {}
        self._supernode: dict[str, str] = {}

    def join(self, member: str, supernode: str) -> None:
        """A member comes, or comes again."""
        if self._supernode.get(member) == supernode:
            return
        self.leave(member)
        self._supernode[member] = supernode
        self._places.setdefault(supernode, _Place()).members.append(member)

    def leave(self, member: str) -> None:
        """A member is gone, and what it handed on with it."""
        supernode = self._supernode.pop(member, None)
        if supernode is None:
            return
        place = self._places[supernode]
        if place.members[0] == member:
            place.endpoint, place.doubts = None, set()
        place.members.remove(member)
        place.doubts.discard(member)
        if not place.members:
            del self._places[supernode]

    def listens(self, member: str, endpoint: Endpoint | None) -> None:
        """Where the relay of `member` listens, as it says with each renewal; None: it has none (any more)."""
        if self.relays(member):
            place = self._places[self._supernode[member]]
            if endpoint != place.endpoint:
                place.endpoint, place.doubts = endpoint, set()

    def doubt(self, member: str) -> None:
        """`member` gets no weights from its relay, or cannot start the one that it should be.

        The next one in the supernode becomes the relay when the relay's own member says so, or half of all members.
        """
        supernode = self._supernode.get(member, self._home)
        if supernode == self._home or len(self._places[supernode].members) == 1:
            return
        place = self._places[supernode]
        place.doubts.add(member)
        if place.members[0] in place.doubts or 2 * len(place.doubts) >= len(place.members):
            place.members.append(place.members.pop(0))
            place.endpoint, place.doubts = None, set()

    def relays(self, member: str) -> bool:
        """Whether `member` has to hand weights on to its supernode."""
        supernode = self._supernode.get(member, self._home)
        return supernode != self._home and self._places[supernode].members[0] == member

    def source(self, member: str, newest: Source) -> Source | None:
        """Where `member` gets the `newest` weights, whose endpoint is the learner's own server.

        None while its supernode's relay does not listen yet.
        """
        supernode = self._supernode.get(member, self._home)
        if supernode == self._home:
            return newest
        endpoint = self._places[supernode].endpoint
        return endpoint and newest.model_copy(update={"endpoint": endpoint})
