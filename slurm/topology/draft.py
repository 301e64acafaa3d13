"""`qianka doctor --topology`: a topology file drafted from what Slurm says, with a comment on each guess."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator

import yaml

from slurm.query.nodelist import fold
from slurm.topology.cluster import Network, Node, Part, ask_slurm

UNPLACED = "in none of them, so left out; give them a place if jobs run there"
LINKS = """
# Fill in what the links are. `all_reduce: [least, most]` is what an all-reduce over such links should reach, in GB/s of
# bus bandwidth, and `source` who says so; `qianka doctor` compares with it, and compares nothing where it is not given.
links:
  # island: {name: MetaXLink, all_reduce: [LEAST, MOST], source: "measured on ..."}
  # node: {name: PCIe}
  # supernode: {name: optical link}
  # between_supernodes: {name: RoCE}
  # between_pods: {name: RoCE over the spine}
nics: [] # for people: which network cards a node has, and which is used for what
"""


def draft() -> str:
    """The text of a topology file for this cluster. Raises `slurm.query.queue.NoAnswer` when Slurm does not answer."""
    return draft_from(*ask_slurm())


def draft_from(nodes: dict[str, Node], network: Network) -> str:
    """The draft for what Slurm said."""
    with_cards = {name: node for name, node in nodes.items() if node.cards}
    used = with_cards or nodes
    scheduler, parts, how = _parts(used, network)
    cards = Counter(node.cards for node in used.values()).most_common(1)[0][0] if used else 0
    return (
        "\n".join(
            [
                "# Drafted by `qianka doctor --topology` from `scontrol show topology` and `scontrol show node`.",
                "# Slurm knows switches and counts, but neither supernodes nor links: look at every line.",
                *_cards(cards, with_cards, nodes),
                "islands: 1 # guess: groups of cards within a node that have faster links among them",
                f"scheduler: {scheduler} # {how}",
                "supernodes:",
                *_supernodes(parts, used, cards),
                LINKS,
            ]
        ).rstrip("\n")
        + "\n"
    )


def _cards(cards: int, with_cards: dict[str, Node], nodes: dict[str, Node]) -> Iterator[str]:
    if not with_cards:
        yield "cards: 1 # guess: Slurm names no gpu Gres; fill in how many cards a node has"
        return
    yield f"cards: {cards} # of each node, by its Gres"
    without = [name for name in nodes if name not in with_cards]
    if without:
        yield f"# {fold(without)}: no gpu Gres, left out"


def _parts(nodes: dict[str, Node], network: Network) -> tuple[str, list[Part], str]:
    """What are taken for supernodes, what Slurm calls them, and why they are taken."""
    if network.parts:
        word = {"tree": "leaf switch", "block": "block"}[network.kind]
        return network.kind, list(network.parts), f"guess: each {word} is a supernode"
    family = _family(nodes.values())
    if family:
        named = {name: next(f for f in node.features if _stem(f) == family) for name, node in nodes.items()}
        parts = [
            Part(feature, tuple(name for name, own in named.items() if own == feature))
            for feature in dict.fromkeys(named.values())
        ]
        return "features", parts, f"guess: the features {family}... of the nodes say which supernode they are in"
    first = {name: node.partitions[0] if node.partitions else "all" for name, node in nodes.items()}
    parts = [Part(p, tuple(n for n, own in first.items() if own == p)) for p in dict.fromkeys(first.values())]
    return "none", parts, "Slurm says nothing of the network: divide the nodes of each partition into supernodes"


def _stem(feature: str) -> str:
    return re.sub(r"\d+$", "", feature)


def _family(nodes: Iterable[Node]) -> str | None:
    """The start of names, such as `sn` of sn0 and sn1, of which every node has exactly one as a feature."""
    numbered = [[f for f in node.features if _stem(f) != f] for node in nodes]
    stems = [Counter(_stem(feature) for feature in features) for features in numbered]
    candidates = [stem for stem in (stems[0] if stems else ()) if all(each[stem] == 1 for each in stems)]
    groups = {stem: {f for features in numbered for f in features if _stem(f) == stem} for stem in candidates}
    several = [stem for stem in candidates if len(groups[stem]) > 1]
    return min(several, key=lambda stem: (len(groups[stem]), stem)) if several else None


def _supernodes(parts: list[Part], nodes: dict[str, Node], cards: int) -> Iterator[str]:
    placed: set[str] = set()
    pods = all(part.above for part in parts)
    for part in parts:
        twice = [name for name in part.nodes if name in placed]
        names = [name for name in part.nodes if name in nodes and name not in placed]
        if twice:
            yield f"  # {part.name}: {fold(twice)} are above already; a node has one place"
        if not names:
            yield f"  # {part.name}: no node with cards, left out"
            continue
        placed |= set(names)
        yield from _supernode(part, names, nodes, cards, pods)
    rest = [name for name in nodes if name not in placed]
    if rest:
        yield f"  # {fold(rest)}: {UNPLACED}"


def _text(name: str | None) -> str:
    """A name as YAML, which would take 007 for a number and `on` for a truth."""
    plain = name and re.fullmatch(r"[\w.-]+", name) and yaml.safe_load(name) == name
    return str(name) if plain else json.dumps(name)


def _supernode(part: Part, names: list[str], nodes: dict[str, Node], cards: int, pods: bool) -> Iterator[str]:
    """One supernode; nodes with another number of cards than most of its nodes are left out."""
    own = Counter(nodes[name].cards for name in names).most_common(1)[0][0]
    odd = [name for name in names if nodes[name].cards != own]
    words = [f"name: {_text(part.name)}", f'nodes: "{fold(name for name in names if name not in odd)}"']
    if pods:
        words.append(f"pod: {_text(part.above)}")
    if own != cards:
        words.append(f"cards: {own}")
    yield f"  - {{{', '.join(words)}}}"
    if odd:
        yield f"  # {fold(odd)}: not the {own} cards of the rest of {part.name}, left out; a supernode has one number"
