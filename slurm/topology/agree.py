"""Whether a topology file agrees with what Slurm says."""

import difflib
from collections.abc import Iterator

from slurm.query.nodelist import fold
from slurm.topology.cluster import Network, Node, ask_slurm
from slurm.topology.site import Topology

WORDS = {"tree": "leaf switch", "block": "block"}


def check_against_slurm(topology: Topology, seconds: float = 60) -> list[str]:
    """What is worth knowing of the file beside the cluster.

    Raises NoAnswer when Slurm says nothing within `seconds`, and ValueError with a line for each thing that is wrong.
    """
    nodes, network = ask_slurm(seconds)
    problems = list(_problems(topology, nodes, network))
    if problems:
        raise ValueError("\n".join(f"slurm.topology: {problem}" for problem in problems))
    return list(_notes(topology, nodes, network))


def _problems(topology: Topology, nodes: dict[str, Node], network: Network) -> Iterator[str]:
    strange = [name for name in topology.home if name not in nodes]
    if strange:
        near = difflib.get_close_matches(strange[0], list(nodes), 3)
        meant = f"near {strange[0]} are {', '.join(near)}" if near else f"it knows {fold(nodes)}"
        yield (
            f"the file names nodes that Slurm does not know: {fold(strange)}; {meant}. `qianka doctor --topology` "
            "drafts a file from what Slurm says"
        )
    for supernode in topology.supernodes:
        cards = topology.cards_of(supernode)
        other = [name for name in supernode.nodes if name in nodes and nodes[name].cards not in (0, cards)]
        if other:
            said = nodes[other[0]].cards
            yield f"{fold(other)} of {supernode.name}: {cards} cards by the file, but {said} by Slurm's Gres"
    yield from _other_parts(topology, nodes, network)


def _other_parts(topology: Topology, nodes: dict[str, Node], network: Network) -> Iterator[str]:
    """Where Slurm would count something else than the file's supernodes."""
    known = [name for name in topology.home if name in nodes]
    if topology.scheduler == "features":
        homes = {name: topology.supernodes[topology.home[name]].name for name in known}
        without = [name for name in known if homes[name] not in nodes[name].features]
        if without:
            yield f"`scheduler` is features, but {fold(without)} have none with the name of their supernode"
    elif topology.scheduler != "none" and topology.scheduler != network.kind:
        yield f"`scheduler` is {topology.scheduler}, but `scontrol show topology` shows {network.kind}"
    elif topology.scheduler != "none":
        parts = [set(part.nodes) for part in network.parts]
        for supernode in topology.supernodes:
            here = set(supernode.nodes) & set(known)
            if not any(here <= part for part in parts):
                word = WORDS[topology.scheduler]
                yield f"no {word} of `scontrol show topology` has all nodes of {supernode.name}"


def _notes(topology: Topology, nodes: dict[str, Node], network: Network) -> Iterator[str]:
    missing = [name for name, node in nodes.items() if name not in topology.home and node.cards]
    if missing:
        yield f"slurm.topology does not place {fold(missing)}; a rank there counts as far from all others"
    unknown = [name for name in topology.home if not nodes[name].cards]
    if unknown:
        yield f"slurm.topology: Slurm names no gpu Gres for {fold(unknown)}, so their number of cards is not checked"
    if topology.scheduler == "none" and network.kind != "none":
        yield f"slurm.topology: Slurm has topology/{network.kind}; `scheduler: {network.kind}` lets jobs ask for it"
