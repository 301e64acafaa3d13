"""What Slurm says of its nodes and of the network between them, and whether a topology file agrees with it."""

import difflib
import re
from dataclasses import dataclass

from slurm.nodelist import expand, fold
from slurm.queue import ask
from slurm.topology.site import Topology

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


def read_topology(text: str) -> tuple[str, list[Part]]:
    """What `scontrol show topology` says: tree or block and its parts, or none."""
    lines = [fields(line) for line in text.splitlines()]
    for kind, key, parents, children in (
        ("tree", "SwitchName", "SwitchName", "Switches"),
        ("block", "BlockName", "AggregatedBlock", "AggregatedBlock"),
    ):
        parts = [line for line in lines if key in line and "Nodes" in line and children not in line]
        if parts:
            above = [line for line in lines if parents in line and children in line]
            return kind, [
                Part(line[key], tuple(expand(line["Nodes"])), _above(line, key, kind, above)) for line in parts
            ]
    return "none", []


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


def slurm_nodes() -> dict[str, Node]:
    """Ask Slurm. Raises `slurm.queue.NoAnswer`."""
    return read_nodes("\n".join(ask("scontrol", "show", "node", "--oneliner")))


def slurm_topology() -> tuple[str, list[Part]]:
    """Ask Slurm. Raises `slurm.queue.NoAnswer`."""
    return read_topology("\n".join(ask("scontrol", "show", "topology")))


def check_against_slurm(topology: Topology) -> list[str]:
    """What is worth knowing of the file beside the cluster. Raises NoAnswer, or ValueError with all that is wrong."""
    return compare(topology, slurm_nodes(), slurm_topology())


def compare(topology: Topology, nodes: dict[str, Node], network: tuple[str, list[Part]]) -> list[str]:
    """`check_against_slurm` for what Slurm said."""
    kind, parts = network
    problems = [
        f"{supernode.name}: Slurm knows no node {name}{_near(name, nodes)}"
        for supernode in topology.supernodes
        for name in supernode.nodes
        if name not in nodes
    ]
    for supernode in topology.supernodes:
        cards = topology.cards_of(supernode)
        other = [name for name in supernode.nodes if name in nodes and nodes[name].cards not in (0, cards)]
        if other:
            problems.append(
                f"{supernode.name}: {fold(other)} with {cards} cards by the file, but "
                f"{nodes[other[0]].cards} by Slurm (Gres of {other[0]})"
            )
    if topology.scheduler in ("tree", "block") and kind != topology.scheduler:
        problems.append(f"`scheduler` is {topology.scheduler}, but `scontrol show topology` shows {kind}")
    elif kind == topology.scheduler != "none":
        problems += _unlike(topology, parts)
    if topology.scheduler == "features":
        features = {name: node.features for name, node in nodes.items()}
        without = [n for s in topology.supernodes for n in s.nodes if n in nodes and s.name not in features[n]]
        if without:
            problems.append(f"`scheduler` is features, but {fold(without)} have no feature with their supernode's name")
    if problems:
        raise ValueError("\n".join(f"slurm.topology: {problem}" for problem in problems))
    return _notes(topology, nodes)


def _unlike(topology: Topology, parts: list[Part]) -> list[str]:
    """Supernodes that are none of Slurm's own parts, so that `--switches` would count something else."""
    known = [set(part.nodes) for part in parts]
    wrong = [
        supernode.name for supernode in topology.supernodes if not any(set(supernode.nodes) <= each for each in known)
    ]
    word = {"tree": "leaf switch", "block": "block"}[topology.scheduler]
    return [f"{name} has nodes of more than one {word} of `scontrol show topology`" for name in wrong]


def _notes(topology: Topology, nodes: dict[str, Node]) -> list[str]:
    found: list[str] = []
    missing = [name for name, node in nodes.items() if name not in topology.home and node.cards]
    if missing:
        found.append(f"slurm.topology does not place {fold(missing)}; a rank there counts as far from all others")
    unknown = [name for name in topology.home if name in nodes and not nodes[name].cards]
    if unknown:
        found.append(f"Slurm names no gpu Gres for {fold(unknown)}, so the file's number of cards is not checked")
    return found


def _near(name: str, nodes: dict[str, Node]) -> str:
    near = difflib.get_close_matches(name, list(nodes), 3)
    return f"; near it are {', '.join(near)}" if near else f"; it knows {fold(nodes)}"
