"""All-reduce between two ranks, for each class of links between them, against the range of the topology file."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm.health.finding import Finding
from slurm.health.torch import Said, ask
from slurm.topology.site import LEVELS, Topology

PAIR_SECONDS = 60.0
"""For the two of a pair to meet."""
Card = tuple[str, int]
"""A node, and the number of a card there; without cards, of a process."""


@dataclass(frozen=True)
class Pair:
    """Two cards and how far apart they are: a level of the topology, or `two nodes` where there is no topology."""

    level: str
    one: Card
    other: Card


def pair_up(nodes: Sequence[str], topology: Topology | None) -> list[Pair]:
    """Pairs for every level that these nodes have, at each level none of them in two pairs."""
    if topology is None:
        return [Pair("two nodes", (one, 0), (other, 0)) for one, other in zip(nodes[::2], nodes[1::2], strict=False)]
    pairs: list[Pair] = []
    for level in LEVELS:
        free = list(nodes)
        while free:
            node = free.pop(0)
            if level in ("island", "node"):
                other = _inside(node, level, topology)
            else:
                mate = next((each for each in free if topology.level(node, each) == level), None)
                other = None if mate is None else (mate, 0)
                if mate is not None:
                    free.remove(mate)
            if other is not None:
                pairs.append(Pair(level, (node, 0), other))
    return pairs


def _inside(node: str, level: str, topology: Topology) -> Card | None:
    home = topology.home.get(node)
    if home is None:
        return None
    cards = range(1, topology.cards_of(topology.supernodes[home]))
    return next(((node, card) for card in cards if topology.level_of_cards((node, 0), (node, card)) == level), None)


def rounds(node: str, pairs: Sequence[Pair], folder: Path, interface: str | None) -> dict[int, list[dict[str, Any]]]:
    """What each of the node's processes does, by card. One order of levels for all: no ring of waiters."""
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        for rank, (mine, peer) in enumerate(((pair.one, pair.other), (pair.other, pair.one))):
            if mine[0] == node:
                found[mine[1]].append(
                    {
                        "level": pair.level,
                        "rank": rank,
                        "card": mine[1],
                        "node": node,
                        "peer": f"{peer[0]} card {peer[1]}",
                        "rendezvous": str(folder / f"pair-{number}.json"),
                        "interface": interface,
                        "seconds": PAIR_SECONDS,
                    }
                )
    return dict(found)


def reduce_pairs(mine: list[dict[str, Any]]) -> Said:
    """Go through one process's rounds."""
    return ask("pairs", mine, PAIR_SECONDS * (len(mine) + 1))


def judge_pairs(node: str, mine: list[dict[str, Any]], said: Said, topology: Topology | None) -> list[Finding]:
    """One finding for each pair whose first rank is here."""
    reduced = {line["level"]: line for line in said.lines if line["what"] == "pair"}
    return [
        _judge(node, each, reduced.get(each["level"]), said.trouble, topology) for each in mine if each["rank"] == 0
    ]


def _judge(
    node: str, each: dict[str, Any], line: dict[str, Any] | None, trouble: str, topology: Topology | None
) -> Finding:
    check, peer = f"all-reduce {each['level'].replace('_', ' ')}", each["peer"]
    expected = None if topology is None else topology.expected(each["level"])
    if line is None:
        return Finding(
            check, node, "bad", f"with {peer}: {trouble}", "look at the rows of both nodes, and at the links"
        )
    if not line["right"]:
        return Finding(check, node, "bad", f"with {peer}: a wrong sum", "take both nodes out of service")
    over = f" over {topology.link_name(each['level'])}" if topology and expected else ""
    measured = f"with {peer}{over}: {line['gb_s']:.3g} GB/s"
    if line["kind"] == "cpu":
        return Finding(check, node, "unknown", f"{measured} by gloo on CPUs; the ranges are of cards")
    if expected is None:
        return Finding(check, node, "unknown", f"{measured}; no range in the topology file")
    low, high = expected
    measured += f", expected {low:g} to {high:g}"
    if line["gb_s"] < low:
        return Finding(check, node, "bad", measured, "ask the administrator to look at the links of these nodes")
    if line["gb_s"] > high:
        return Finding(check, node, "unknown", f"{measured}: faster than the file says, which is then wrong")
    return Finding(check, node, "ok", measured)
