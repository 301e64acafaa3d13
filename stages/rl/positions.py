"""Positions that are told or written as ranges: those that are done with ahead of the cursor are nearly contiguous."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter

MOST = 2**24
"""Of a message; more is an error of who sends it, and would take the memory of who reads it."""
RANGES = TypeAdapter(tuple[tuple[int, int], ...])


def ranges(positions: Iterable[int]) -> list[tuple[int, int]]:
    """The first one and the one behind the last one of each range; `positions` are in order."""
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and found[-1][1] == position:
            found[-1] = found[-1][0], position + 1
        else:
            found.append((position, position + 1))
    return found


def positions(ranges: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """All that `ranges` have. ValueError for too many."""
    if sum(max(0, end - first) for first, end in ranges) > MOST:
        raise ValueError(f"more than {MOST} positions")
    return tuple(position for first, end in ranges for position in range(first, end))


def _told(value: Any) -> Any:
    """Positions as they are in this process, or ranges that have come from another one."""
    told = cast(Sequence[Any], value) if isinstance(value, (list, tuple)) else ()
    return value if told and isinstance(told[0], int) else positions(RANGES.validate_python(value))


Positions = Annotated[tuple[int, ...], BeforeValidator(_told), PlainSerializer(lambda told: ranges(sorted(told)))]
"""A field of a message: a tuple here, ranges on the way."""
