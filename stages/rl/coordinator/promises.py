"""What members have, as far as is known: promises that may be broken. Pure."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from stages.rl.messages import Lease


class Held(NamedTuple):
    """A lease that is out."""

    lease: Lease
    member: str


class Promises:
    """Leases, and what became of them as long as the shards have not been asked since."""

    def __init__(self) -> None:
        self.leased: dict[int, Held] = {}
        self.stored: dict[int, float] = {}
        """Put, as their actors say, and when."""
        self.handed: dict[int, float] = {}
        """Handed back, and when; their shards may have the beginning."""
        self._by_member: dict[str, dict[str, int]] = {}

    def __contains__(self, position: int) -> bool:
        return position in self.leased or position in self.stored or position in self.handed

    def of(self, member: str) -> dict[str, int]:
        """Positions that `member` has, by lease."""
        return dict(self._by_member.get(member, {}))

    def position(self, member: str, id: str) -> int | None:
        """Of a lease that `member` has."""
        return self._by_member.get(member, {}).get(id)

    def hold(self, member: str, lease: Lease) -> None:
        """`member` has it now."""
        self.leased[lease.position] = Held(lease, member)
        self._by_member.setdefault(member, {})[lease.id] = lease.position

    def free(self, position: int) -> None:
        """Nobody has it any more."""
        held = self.leased.pop(position, None)
        if held:
            mine = self._by_member[held.member]
            del mine[held.lease.id]
            if not mine:
                del self._by_member[held.member]

    def forget(self, is_done: Callable[[int], bool], is_useless: Callable[[Lease], bool]) -> list[int]:
        """Drop what is of no use any more; the positions."""
        useless = [held.lease.position for held in self.leased.values() if is_useless(held.lease)]
        for position in useless:
            self.free(position)
        for known in (self.stored, self.handed):
            done = [position for position in known if is_done(position)]
            useless += done
            for position in done:
                del known[position]
        return useless

    def asked(self, shard: int, shards: int, when: float) -> Iterator[tuple[int, bool]]:
        """`shard` was asked at that time, so what was put or handed back before is known: each, and whether put."""
        for known in (self.stored, self.handed):
            for position in [p for p, since in known.items() if p % shards == shard and since <= when]:
                del known[position]
                yield position, known is self.stored
