"""Who waits for whom among the nodes of an algorithm."""

from collections.abc import Iterable, Mapping, Sequence

from stages.algorithms.node import Node


def sources(node: Node) -> set[str]:
    """The nodes, or given quantities, that it takes from."""
    return {source.partition(".")[0] for source in node.takes.values()}


def followers(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    """By node, those of `nodes` that wait for it."""
    return {node.name: [other for other in nodes if node.name in sources(other)] for node in nodes}


def in_order(nodes: Iterable[Node]) -> tuple[list[Node], list[str]]:
    """The nodes as they are listed, except that each comes after those that it waits for, and a circle of names.

    Where there is a circle, each of its nodes waits for the one before it; the first stands at its end again.
    """
    waiting = {node.name: node for node in nodes}
    needed = {name: sources(node) & waiting.keys() for name, node in waiting.items()}
    ordered = list[Node]()
    while waiting:
        name = next((name for name in waiting if not needed[name] & waiting.keys()), None)
        if name is None:
            return ordered, _circle({name: needed[name] & waiting.keys() for name in waiting})
        ordered.append(waiting.pop(name))
    return ordered, []


def reached(nodes: Iterable[Node], ends: Iterable[str]) -> set[str]:
    """The nodes and given quantities that the quantities `ends` are made of, themselves included."""
    needed = {node.name: sources(node) for node in nodes}
    found, waiting = set[str](), [end.partition(".")[0] for end in ends]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += needed.get(name, ())
    return found


def _circle(needed: Mapping[str, set[str]]) -> list[str]:
    """A circle in which each waits for another of `needed`, as all of them do."""
    path = [min(needed)]
    while path[-1] not in path[:-1]:
        path.append(min(needed[path[-1]]))
    return path[path.index(path[-1]) :][::-1]
