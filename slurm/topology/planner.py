"""From what a stage needs to a plan, and from what Slurm gave to the plan for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm

from data.job import check_shards
from slurm.config import ResourcesConfig
from slurm.topology.choose import choose_nodes, eligible, order_nodes
from slurm.topology.plan import Plan
from slurm.topology.site import Topology


@dataclass(frozen=True)
class Need:
    """What a stage asks for."""

    nodes: int
    tasks_per_node: int
    """Ranks on a node, one a card."""
    tensor_parallel: int = 1
    """Ranks that share each weight matrix."""
    shard_ranks: int | None = None
    """Ranks of an FSDP group; None: as many as fit in a supernode."""
    excluded: frozenset[str] = frozenset()
    """Nodes that are avoided."""

    @classmethod
    def of(cls, shape: ResourcesConfig, excluded: Iterable[str] = ()) -> "Need":
        """The need of a stage with resources of this shape."""
        return cls(shape.nodes, shape.tasks_per_node, shard_ranks=shape.shard_ranks, excluded=frozenset(excluded))


def plan(topology: Topology, need: Need) -> Plan:
    """Place a stage on an otherwise empty site. Raises ValueError when it does not fit or the sizes do not divide."""
    world_size, ways = need.nodes * need.tasks_per_node, need.tensor_parallel
    _check(world_size, ways, need.shard_ranks)
    free = eligible(topology, need.tasks_per_node, need.excluded)
    num_free = sum(map(len, free))
    if num_free < need.nodes:
        raise ValueError(_too_many(topology, need, num_free))
    sizes = [need.shard_ranks] if need.shard_ranks else _divisors(world_size // ways)
    for size in sizes:
        chosen = choose_nodes(topology, free, need.nodes, _unit(size * ways, need.tasks_per_node))
        if chosen is not None:
            return Plan(topology, tuple(chosen), need.tasks_per_node, ways, size)
    for unit in (_unit(ways, need.tasks_per_node), 1):  # no supernode holds a whole group
        chosen = choose_nodes(topology, free, need.nodes, unit)
        if chosen is not None:
            return Plan(topology, tuple(chosen), need.tasks_per_node, ways, sizes[0])
    raise AssertionError("there are enough nodes, and one at a time always fits")


def arrange(
    topology: Topology, nodes: Sequence[str], tasks_per_node: int, shard_ranks: int | None = None, ways: int = 1
) -> Plan:
    """The plan for the nodes that Slurm gave, the first of which keeps rank 0.

    Without `shard_ranks`, FSDP groups are the largest of one size that stay within supernodes. ValueError when the
    sizes do not divide.
    """
    world_size = len(nodes) * tasks_per_node
    _check(world_size, ways, shard_ranks)
    ordered = tuple(order_nodes(topology, list(nodes)))
    whole = Plan(topology, ordered, tasks_per_node, ways, shard_ranks or world_size // ways)
    if shard_ranks:
        return whole
    parts = [len(names) * tasks_per_node for names in whole.supernodes.values()]
    fitting = [size for size in _divisors(world_size // ways) if all(part % (size * ways) == 0 for part in parts)]
    return Plan(topology, ordered, tasks_per_node, ways, fitting[0]) if fitting else whole


def rank_order(topology: Topology, nodes: Sequence[str], tasks_per_node: int) -> list[int]:
    """The rank of each task of an allocation, the same on every rank. Task 0 is rank 0.

    The nodes are given as Slurm numbers them: task t is number t % tasks_per_node on node t // tasks_per_node.
    """
    place = {node: position for position, node in enumerate(order_nodes(topology, list(nodes)))}
    return [place[node] * tasks_per_node + task for node in nodes for task in range(tasks_per_node)]


def _unit(ranks: int, tasks_per_node: int) -> int:
    """The fewest nodes that hold a whole number of groups of so many ranks."""
    return lcm(ranks, tasks_per_node) // tasks_per_node


def _divisors(number: int) -> list[int]:
    """The largest first."""
    return [size for size in range(number, 0, -1) if number % size == 0]


def _check(world_size: int, ways: int, shard_ranks: int | None) -> None:
    if world_size % ways:
        raise ValueError(f"{ways} tensor-parallel ranks do not divide the {world_size} ranks of the job")
    which = " of each part of a matrix" if ways > 1 else ""
    check_shards(shard_ranks, world_size // ways, "shard_ranks", which)


def _too_many(topology: Topology, need: Need, num_free: int) -> str:
    largest = max(topology.cards_of(supernode) for supernode in topology.supernodes)
    if need.tasks_per_node > largest:
        return f"{need.tasks_per_node} tasks a node need as many cards, but the largest node of the site has {largest}"
    avoided = sorted(need.excluded & topology.home.keys())
    without = f" without {', '.join(avoided)}, which the run avoids (excluded.json in its folder)" if avoided else ""
    return (
        f"{need.nodes} nodes with {need.tasks_per_node} cards each are {need.nodes * need.tasks_per_node} cards, but "
        f"the site has {num_free} such nodes{without} ({topology.num_cards} cards in all)"
    )
