"""What a shard has, and what may become of it: the protocol of the store, without files, network or clock.

The law: of each position at most one whole group is on the shelf, whatever its attempt, and none once the position is
done with. `put` decides; the journal then makes the group durable, and only `settle` makes it visible and lets it be
acknowledged. A shard that dies loses its Shelf; `restore` makes it anew out of the journal and the learner's state.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from data.segments import Origin

Decision = Literal["kept", "duplicate", "stale", "full", "pending", "not yet"]
"""kept: now it is to be journalled, then settled. duplicate: it is not needed, for the position has what it needs.
stale: the attempt was thrown away. The others say why the one who puts has to wait: full: until the learner has taken
some; pending: another put of this position is on its way to the journal; not yet: nobody has restored the shelf."""


@dataclass
class Shelf:
    """The groups of the positions of one shard that are not done with, each by what is known of it."""

    bound: int
    """Bytes of groups, from which on no further position is taken in."""
    num_bytes: int = 0
    """Of all groups that are here or on their way to the journal."""
    cursor: int = 0
    restored: bool = False
    thrown: list[Origin] = field(default_factory=list[Origin])
    """Durable groups that are of no use any more; whoever removes them from the journal empties it."""
    trained: list[Origin] = field(default_factory=list[Origin])
    """Those that were done with; whoever takes note of it empties it."""
    _ahead: set[int] = field(default_factory=set[int])
    _attempts: dict[int, int] = field(default_factory=dict[int, int])
    _groups: dict[int, Origin] = field(default_factory=dict[int, Origin])
    _taken: set[int] = field(default_factory=set[int])
    _pending: dict[int, Origin] = field(default_factory=dict[int, Origin])
    _missing: int = 0
    """Groups that are taken in beyond the bound, for a learner that waits for them."""

    def restore(self, cursor: int, ahead: Iterable[int], attempts: Mapping[int, int], found: Iterable[Origin]) -> None:
        """Begin anew with the learner's state and with what the journal has; all else is forgotten.

        Of several groups of a position the best stays: whole before partial, then the latest attempt, then the
        longest. One that is not durable yet comes in when it is settled.
        """
        self.cursor, self._ahead, self._attempts = cursor, {p for p in ahead if p >= cursor}, dict(attempts)
        self._groups, self._taken, self._missing, self.thrown, self.trained = {}, set(), 0, [], []
        for group in found:
            kept = self._groups.get(group.position)
            if not self._wanted(group):
                self._throw(group)
            elif kept is None or _rank(group) > _rank(kept):
                self._groups[group.position] = group
                self.thrown += [kept] if kept else []
            elif group != kept:
                self.thrown.append(group)
        self._pending = {
            p: group for p, group in self._pending.items() if self._wanted(group) and self._groups.get(p) != group
        }
        self.num_bytes = sum(group.num_bytes for group in [*self._groups.values(), *self._pending.values()])
        self.restored = True

    def put(self, group: Origin) -> Decision:
        """Whether `group` is taken in; if "kept", it is on its way until `settle`."""
        decision = self.would_put(group)
        if decision == "kept":
            if self.num_bytes >= self.bound and group.position not in self._groups:
                self._missing = max(0, self._missing - 1)
            self._pending[group.position] = group
            self.num_bytes += group.num_bytes
        return decision

    def would_put(self, group: Origin) -> Decision:
        """What `put` would say now."""
        if not self.restored:
            return "not yet"
        position, there = group.position, self._groups.get(group.position)
        if self.is_done(position):
            return "duplicate"
        if group.attempt < self.attempt(position):
            return "stale"
        if position in self._pending:
            return "pending"
        if there is not None:
            # Growing what is begun is never refused for want of room: a shelf full of partials would stay full.
            return "kept" if _rank(group) > _rank(there) and not there.whole else "duplicate"
        # What all wait for is never refused either: faster actors would fill each gap with later positions, for ever.
        return "full" if self.is_full and position != self.cursor else "kept"

    def settle(self, group: Origin) -> Decision:
        """`group` is durable, and what may be acknowledged: in the meantime it may have come to be of no use."""
        position = group.position
        if self._pending.get(position) == group:
            del self._pending[position]
            if position in self._groups:
                self._drop(position)
            self._groups[position] = group
        elif self._groups.get(position) != group:  # which a restore has found in the journal
            self._throw(group)
            return "duplicate" if self.is_done(position) else "stale"
        return "kept"

    @property
    def is_full(self) -> bool:
        """Whether new positions have to wait.

        Not those that a learner lacks: with a bound below a batch it would wait for ever.
        """
        return self.num_bytes >= self.bound and not self._missing

    def ready(self, missing: int = 0) -> list[Origin]:
        """Whole groups that nobody has taken, by position. Asking again, a learner says how many it lacked before."""
        self._missing = missing
        return [self._groups[p] for p in sorted(self._groups) if self._groups[p].whole and p not in self._taken]

    def take(self, keys: Sequence[tuple[int, int]]) -> list[Origin]:
        """Give these groups to the learner; those that it has already, too. KeyError where one is not here."""
        groups = [self._groups[position] for position, _ in keys]
        for group, key in zip(groups, keys, strict=True):
            if group.key != key or not group.whole:
                raise KeyError(key)
        self._taken.update(group.position for group in groups)
        self._missing = 0
        return groups

    def begun(self, position: int) -> list[Origin]:
        """The half-played group of a position, if there is one."""
        group = self._groups.get(position)
        return [group] if group is not None and not group.whole else []

    def again(self, attempts: Mapping[int, int]) -> None:
        """The positions are to be played again as these attempts; what came of earlier ones is thrown away."""
        for position, attempt in attempts.items():
            if self.is_done(position) or attempt <= self.attempt(position):
                continue
            self._attempts[position] = attempt
            if position in self._groups and self._groups[position].attempt < attempt:
                self._drop(position)
            if position in self._pending and self._pending[position].attempt < attempt:
                self.num_bytes -= self._pending.pop(position).num_bytes

    def done(self, cursor: int, ahead: Collection[int]) -> None:
        """All positions before `cursor` are done with, and those `ahead` of it. Only `restore` goes back."""
        self._ahead = {p for p in self._ahead.union(ahead) if p >= max(cursor, self.cursor)}
        self.cursor = max(cursor, self.cursor)
        for position in [p for p in self._groups if self.is_done(p)]:
            self._drop(position)
        for position in [p for p in self._pending if self.is_done(p)]:
            self.num_bytes -= self._pending.pop(position).num_bytes
        self._attempts = {p: attempt for p, attempt in self._attempts.items() if not self.is_done(p)}

    def is_done(self, position: int) -> bool:
        """Whether the position is trained or set aside."""
        return position < self.cursor or position in self._ahead

    def attempt(self, position: int) -> int:
        """The earliest attempt of a position that is still of use."""
        return self._attempts.get(position, 0)

    def groups(self) -> list[tuple[Origin, Literal["partial", "ready", "taken"]]]:
        """All that is here and durable, by position."""
        return [(self._groups[position], self._state(position)) for position in sorted(self._groups)]

    def _state(self, position: int) -> Literal["partial", "ready", "taken"]:
        if position in self._taken:
            return "taken"
        return "ready" if self._groups[position].whole else "partial"

    def _wanted(self, group: Origin) -> bool:
        return not self.is_done(group.position) and group.attempt >= self.attempt(group.position)

    def _drop(self, position: int) -> None:
        group = self._groups.pop(position)
        self.num_bytes -= group.num_bytes
        self._taken.discard(position)
        self._throw(group)

    def _throw(self, group: Origin) -> None:
        # What was trained on stays in the journal until a checkpoint knows it.
        (self.trained if group.whole and self.is_done(group.position) else self.thrown).append(group)


def _rank(group: Origin) -> tuple[bool, int, int]:
    return group.whole, group.attempt, group.tokens
