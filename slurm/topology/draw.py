"""A plan as a picture for people, readable without colours and in 80 columns."""

from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from slurm.query.nodelist import fold
from slurm.topology.plan import Plan
from slurm.topology.site import LEVELS, Supernode

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")
FREE, AVOIDED, SEVERAL = "·", "x", "+"
NODE_ROWS = 16
"""So many nodes get a row each, with a sign for each card. Of more, supernodes do, with a sign for each node."""
SUPERNODE_ROWS = 40
"""Rows that are shown of a larger plan."""
LISTED = 16
"""Nodes that are named one by one."""

Row = tuple[str, str, str, Text]


def draw(plan: Plan, excluded: frozenset[str] = frozenset()) -> Table:
    """The supernodes that the plan uses, their nodes and ranks, and the copy of the model that each holds a part of."""
    table = Table(box=box.ROUNDED)
    for column in ("supernode", "nodes", "ranks", "copies of the model"):
        table.add_column(column, overflow="fold")
    parts = list(_supernodes(plan))
    shown = parts if len(parts) <= SUPERNODE_ROWS else parts[: SUPERNODE_ROWS // 2]
    detailed = len(plan.nodes) <= NODE_ROWS
    for name, home, used in shown:
        for row in (
            _node_rows(plan, name, home, used, excluded) if detailed else [_row(plan, name, home, used, excluded)]
        ):
            table.add_row(*row)
        if detailed:
            table.add_section()
    if len(shown) < len(parts):
        start = sum(len(used) for _, _, used in shown)
        table.add_row(f"{len(parts) - len(shown)} more", "", _ranks(plan, start, len(plan.nodes) - 1), "...")
    unused = len(plan.topology.supernodes) - sum(home is not None for _, home, _ in parts)
    if unused:
        table.add_row(f"{unused} other" + "s" * (unused > 1), "", "", Text("no rank", style="dim"))
    return table


def legend(plan: Plan, excluded: frozenset[str] = frozenset()) -> str:
    """What the signs of the picture mean."""
    detailed = len(plan.nodes) <= NODE_ROWS
    words = [f"a sign is a {'card' if detailed else 'node'}, its letter the copy of the model (FSDP group)"]
    if plan.replicas > len(LETTERS):
        words.append(f"{plan.replicas} copies, so letters come again")
    if not detailed and any(len(_copies(plan, place)) > 1 for place in range(len(plan.nodes))):
        words.append(f"{SEVERAL} several copies")
    words.append(f"{FREE} free")
    if excluded:
        words.append(f"{AVOIDED} avoided")
    return "; ".join(words)


def relay_words(plan: Plan) -> list[str]:
    """The way of new weights, from the slowest links to the fastest."""
    lines: list[str] = []
    for level in LEVELS[::-1]:
        hops = [hop for hop in plan.relay if hop.level == level]
        if not hops:
            continue
        over = f"over {plan.topology.link_name(level)}"
        if level == "supernode" and len(plan.supernodes) > 1:
            lines.append(f"each to the {len(hops)} other nodes of its supernode {over}")
        else:
            sources = list(dict.fromkeys(hop.source for hop in hops))
            lines.append(f"{_listed(sources)} -> {_listed([hop.target for hop in hops])} {over}")
    return lines


def _listed(nodes: list[str]) -> str:
    return fold(nodes) if len(nodes) <= LISTED else f"{len(nodes)} nodes, {nodes[0]} to {nodes[-1]},"


def _supernodes(plan: Plan) -> Iterator[tuple[str, Supernode | None, list[str]]]:
    """Each supernode that is used, with its used nodes; None for a node that the file does not place."""
    homes = {supernode.name: supernode for supernode in plan.topology.supernodes}
    for name, used in plan.supernodes.items():
        yield name, homes.get(name) if used[0] in plan.topology.home else None, used


def _row(plan: Plan, name: str, home: Supernode | None, used: list[str], excluded: frozenset[str]) -> Row:
    """A supernode."""
    places = [plan.nodes.index(node) for node in used]
    picture = Text()
    for place in places:
        copies = _copies(plan, place)
        if len(copies) > 1:
            picture.append(SEVERAL)
        else:
            picture.append(*_sign(copies[0]))
    for node in home.nodes if home else ():
        if node not in used:
            picture.append(AVOIDED if node in excluded else FREE, style="dim")
    return name, fold(used), _ranks(plan, places[0], places[-1]), picture


def _node_rows(
    plan: Plan, name: str, home: Supernode | None, used: list[str], excluded: frozenset[str]
) -> Iterator[Row]:
    """The nodes of a supernode that have ranks, one by one, and the others together."""
    cards = plan.topology.cards_of(home) if home else plan.tasks_per_node
    island = cards // (plan.topology.islands_of(home) if home else 1)
    for index, node in enumerate(used):
        place = plan.nodes.index(node)
        picture = Text()
        for card in range(cards):
            if card and card % island == 0:
                picture.append(" ")
            if card < plan.tasks_per_node:
                picture.append(*_sign((place * plan.tasks_per_node + card) // plan.copy_ranks))
            else:
                picture.append(FREE, style="dim")
        yield name if index == 0 else "", node, _ranks(plan, place, place), picture
    for avoided, word in ((False, FREE), (True, AVOIDED)):
        rest = [node for node in (home.nodes if home else ()) if node not in used and (node in excluded) is avoided]
        if rest:
            yield "", fold(rest), "", Text(word * len(rest), style="dim")


def _ranks(plan: Plan, first: int, last: int) -> str:
    start, end = first * plan.tasks_per_node, (last + 1) * plan.tasks_per_node - 1
    return f"{start}-{end}" if start < end else str(start)


def _copies(plan: Plan, place: int) -> list[int]:
    """The copies of the model of which a node holds parts."""
    start = place * plan.tasks_per_node
    return list(range(start // plan.copy_ranks, (start + plan.tasks_per_node - 1) // plan.copy_ranks + 1))


def _sign(copy: int) -> tuple[str, str]:
    """A copy's letter and colour."""
    return LETTERS[copy % len(LETTERS)], COLOURS[copy % len(COLOURS)]
