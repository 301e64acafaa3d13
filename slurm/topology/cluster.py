"""What Slurm says of its nodes and of the network between them."""

import re
from dataclasses import dataclass

from slurm.nodelist import expand
from slurm.queue import ask

GPU = re.compile(r"(?:^|,)(?:gres/)?gpu(?::[^,:(]+)?:(\d+)")
"""gpu:8, gpu:c550:8(S:0-1), and several of them."""


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
        words = fields(line)
        if "NodeName" in words:
            name, features = words["NodeName"], words.get("AvailableFeatures", words.get("Features", ""))
            cards = sum(map(int, GPU.findall(words.get("Gres", ""))))
            found[name] = Node(name, cards, _listed(features), _listed(words.get("Partitions", "")))
    return found


def read_topology(text: str) -> Network:
    """What `scontrol show topology` says."""
    lines = [fields(line) for line in text.splitlines()]
    for kind, key, parents, children in (
        ("tree", "SwitchName", "SwitchName", "Switches"),
        ("block", "BlockName", "AggregatedBlock", "AggregatedBlock"),
    ):
        parts = [line for line in lines if key in line and "Nodes" in line and children not in line]
        if parts:
            above = [line for line in lines if parents in line and children in line]
            found = (Part(part[key], tuple(expand(part["Nodes"])), _above(part, key, kind, above)) for part in parts)
            return Network(kind, tuple(found))
    return Network("none")


def fields(line: str) -> dict[str, str]:
    """`Key=value Key=value`; a value with blanks in it loses what follows the first."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def _above(part: dict[str, str], key: str, kind: str, lines: list[dict[str, str]]) -> str | None:
    """The smallest switch or aggregated block that holds a part, where there are several of the kind."""
    nodes = set(expand(part["Nodes"]))
    if kind == "tree":
        over = [line for line in lines if part[key] in expand(line["Switches"])]
        names = {line["SwitchName"] for line in lines if line.get("Level") == "1"}
        name = over[0]["SwitchName"] if over else None
    else:
        over = sorted(
            (line for line in lines if nodes <= set(expand(line["Nodes"]))), key=lambda line: len(line["Nodes"])
        )
        name = over[0]["AggregatedBlock"] if over else None
        size = len(expand(over[0]["Nodes"])) if over else 0
        names = {line["AggregatedBlock"] for line in lines if len(expand(line["Nodes"])) == size}
    return name if len(names) > 1 else None


def _listed(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else tuple(re.split(r",(?![^(]*\))", text))


def ask_slurm(seconds: float = 60) -> tuple[dict[str, Node], Network]:
    """Nodes and network, each asked for with a limit of `seconds`. Raises `slurm.queue.NoAnswer`."""
    nodes = read_nodes("\n".join(ask("scontrol", "show", "node", "--oneliner", seconds=seconds)))
    return nodes, read_topology("\n".join(ask("scontrol", "show", "topology", seconds=seconds)))
