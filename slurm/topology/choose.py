"""Which nodes a job of several nodes is best placed on."""

from collections.abc import Iterable
from itertools import groupby

from slurm.topology.site import Topology


def eligible(topology: Topology, tasks_per_node: int, excluded: Iterable[str] = ()) -> list[list[str]]:
    """The nodes of each supernode that have a card for each task and are not avoided."""
    avoided = set(excluded)
    return [
        [node for node in supernode.nodes if node not in avoided]
        if topology.cards_of(supernode) >= tasks_per_node
        else []
        for supernode in topology.supernodes
    ]


def choose_nodes(topology: Topology, free: list[list[str]], nodes: int, unit: int) -> list[str] | None:
    """`nodes` of the `free` ones, from each supernode a multiple of `unit`, in rank order. None when there are too few.

    Fewest supernodes first; of such choices the one with the fewest pods, then with the fewest nodes left over in the
    supernodes that it opens, so that whole supernodes stay whole for others.
    """
    assert nodes % unit == 0, f"{nodes} nodes are no multiple of {unit}"
    sizes = [len(names) for names in free]
    pods = [[place for place in range(len(free)) if topology.supernodes[place].pod == pod] for pod in _pods(topology)]
    choices = [
        choice
        for places in [*pods, list(range(len(free)))]
        if (choice := _fill(topology, sizes, places, nodes, unit)) is not None
    ]
    if not choices:
        return None

    def cost(choice: dict[int, int]) -> tuple[int, int, int, list[int]]:
        left_over = sum(len(free[place]) for place in choice) - nodes
        return len(choice), len({topology.supernodes[place].pod for place in choice}), left_over, sorted(choice)

    best = min(choices, key=cost)
    order = sorted(best, key=lambda place: (_pods(topology).index(topology.supernodes[place].pod), place))
    return [node for place in order for node in free[place][: best[place]]]


def _fill(topology: Topology, sizes: list[int], places: list[int], nodes: int, unit: int) -> dict[int, int] | None:
    """How many nodes of each supernode: whole large ones, and for the rest the smallest one that holds it."""
    room = {place: sizes[place] // unit * unit for place in places}
    pod_room = {pod: sum(room[p] for p in places if topology.supernodes[p].pod == pod) for pod in _pods(topology)}

    def largest_first(place: int) -> tuple[int, int, int, int, int]:
        supernode = topology.supernodes[place]
        return -room[place], topology.cards_of(supernode), -pod_room[supernode.pod], sizes[place], place

    chosen: dict[int, int] = {}
    for place in sorted(places, key=largest_first):
        rest = nodes - sum(chosen.values())
        fitting = [p for p in places if p not in chosen and room[p] >= rest]
        if fitting:
            chosen[min(fitting, key=lambda p: (sizes[p], topology.cards_of(topology.supernodes[p]), p))] = rest
            return chosen
        if room[place]:
            chosen[place] = room[place]
    return None


def _pods(topology: Topology) -> list[str | None]:
    """In the order of the file."""
    return list(dict.fromkeys(supernode.pod for supernode in topology.supernodes))


def order_nodes(topology: Topology, nodes: list[str]) -> list[str]:
    """The nodes of an allocation in rank order: the first one stays first, and supernodes and pods stay together.

    Nodes that the file does not place come last, each for itself.
    """
    home, pods = topology.home, _pods(topology)
    first = nodes[0]

    def key(node: str) -> tuple[bool, bool, int, bool, int]:
        place = home.get(node)
        if place is None:
            return node != first, True, len(pods), True, 0
        pod = topology.supernodes[place].pod
        same_pod = first in home and pod == topology.supernodes[home[first]].pod
        return place != home.get(first), not same_pod, pods.index(pod), False, place

    groups = [list(group) for _, group in groupby(sorted(nodes, key=key), key=key)]
    return [node for group in groups for node in sorted(group, key=lambda name: (name != first, nodes.index(name)))]
