"""How many prompts each actor may have at once. Pure.

Actors pull, so as long as the window has room for all, each gets what it asks for. When it has not, the room is shared
by speed, so that prompts wait for nobody slow: a slow actor, one whose card others use as well, and one that is far
away are given less. Each gets one as long as there are any.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

AHEAD = 1
"""Leases that an actor may have beyond what it has room for, so that it begins the next one at once."""
SLOWEST, FASTEST = 0.1, 4.0
"""Bounds of a weight, of the median's: one measurement that is out by far moves little."""


@dataclass(frozen=True)
class Load:
    """What is known of an actor."""

    capacity: int
    """Prompts that it has room for."""
    speed: float | None
    """Tokens a second of one sequence; None before the first measurement."""
    utilisation: float = 0.0
    """Share of the time in which its own engine generated."""
    device: float | None = None
    """Utilisation of its card, by whomever."""
    delay: float = 0.0
    """Seconds of a call to the coordinator."""


def weights(loads: Mapping[str, Load]) -> dict[str, float]:
    """What each can be trusted with, 1 being usual."""
    usual = median([load.speed for load in loads.values() if load.speed] or [1.0])
    found = dict[str, float]()
    for name, load in loads.items():
        speed = (load.speed or usual) / usual
        # What its card does beyond its own engine's work, somebody else does there.
        others = max(0.0, (load.device or 0.0) - load.utilisation)
        found[name] = min(FASTEST, max(SLOWEST, speed * (1 - min(others, 0.9)) / (1 + load.delay)))
    return found


def quotas(loads: Mapping[str, Load], prompts: int) -> dict[str, int]:
    """Prompts that each may have of `prompts` in all, never more than it has room for.

    By weight, and what one has no room for goes to the others. At least 1 each: the window, not this, is the bound.
    """
    heavy = weights(loads)
    quota = {name: 1 for name in loads}
    # Largest room for its weight last: each takes its share of what those before it left.
    order = sorted(loads, key=lambda name: loads[name].capacity / heavy[name])
    left, weight = prompts, sum(heavy.values())
    for name in order:
        share = left * heavy[name] / weight if weight else 0.0
        quota[name] = max(1, min(loads[name].capacity, round(share)))
        left, weight = max(0, left - quota[name]), weight - heavy[name]
    return quota
