"""What Slurm says of its nodes and of the network between them."""

import re
from dataclasses import dataclass

from slurm.query.answers import read_cards, read_words
from slurm.query.nodelist import expand
from slurm.query.queue import NoAnswer, ask

NO_TOPOLOGY = "No topology information available"
"""What scontrol says without a topology plugin; an error to some versions."""


@dataclass(frozen=True)
class Node:
    """A node that Slurm knows."""

    name: str
    cards: int
    """By its Gres; 0 when it names none."""
    features: tuple[str, ...]
    partitions: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A leaf switch or a block: the nodes that are close to each other, and what is above them."""

    name: str
    nodes: tuple[str, ...]
    above: str | None = None


@dataclass(frozen=True)
class Network:
    """What the topology plugin says; `kind` is tree, block or none."""

    kind: str
    parts: tuple[Part, ...] = ()


def read_nodes(text: str) -> dict[str, Node]:
    """The nodes of `scontrol show node --oneliner`, in its order."""
    found: dict[str, Node] = {}
    for line in text.splitlines():
        words = read_words(line)
        if "NodeName" in words:
            name, features = words["NodeName"], words.get("AvailableFeatures", words.get("Features", ""))
            found[name] = Node(
                name, read_cards(words.get("Gres", "")), _listed(features), _listed(words.get("Partitions", ""))
            )
    return found


def read_topology(text: str) -> Network:
    """What `scontrol show topology` says; lines that it does not understand are left out."""
    lines = [read_words(line) for line in text.splitlines()]
    for kind, key, parent, children in (
        ("tree", "SwitchName", "SwitchName", "Switches"),
        ("block", "BlockName", "AggregatedBlock", "AggregatedBlock"),
    ):
        above = [line for line in lines if parent in line and children in line]
        parts = [line for line in lines if key in line and children not in line and _nodes(line)]
        if parts:
            return Network(kind, tuple(Part(part[key], _nodes(part), _above(part, parent, above)) for part in parts))
    return Network("none")


def _nodes(line: dict[str, str]) -> tuple[str, ...]:
    """The nodes of a switch or block; none when it has none, or says them in another way."""
    try:
        return tuple(expand(line.get("Nodes", "").replace("(null)", "")))
    except ValueError:
        return ()


def _above(part: dict[str, str], parent: str, above: list[dict[str, str]]) -> str | None:
    """The smallest switch or aggregated block that holds a part, where it is one of several of its height."""

    def height(line: dict[str, str]) -> str:
        return line.get("Level", line.get("BlockSize", "")).zfill(9)

    holding = sorted((line for line in above if set(_nodes(part)) <= set(_nodes(line))), key=height)
    if not holding or sum(height(line) == height(holding[0]) for line in above) == 1:
        return None
    return holding[0][parent]


def _listed(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else tuple(re.split(r",(?![^(]*\))", text))


def ask_slurm(seconds: float = 60) -> tuple[dict[str, Node], Network]:
    """Nodes and network, each asked for with a limit of `seconds`. Raises `slurm.query.queue.NoAnswer`."""
    nodes = read_nodes("\n".join(ask("scontrol", "show", "node", "--oneliner", seconds=seconds)))
    try:
        return nodes, read_topology("\n".join(ask("scontrol", "show", "topology", seconds=seconds)))
    except NoAnswer as error:
        if NO_TOPOLOGY not in str(error):
            raise
        return nodes, Network("none")
