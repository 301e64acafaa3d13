"""A plan: where the ranks of a job are, in which groups they talk, and the way that new weights take."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from slurm.topology.site import LEVELS, Level, Topology

Group = tuple[int, ...]


@dataclass(frozen=True)
class Hop:
    """One node hands new weights on to another."""

    source: str
    target: str
    level: Level


@dataclass(frozen=True)
class Plan:
    """Where the ranks are, and who talks to whom.

    Rank r is on card r % tasks_per_node of node r // tasks_per_node. `tensor_parallel` consecutive ranks hold a weight
    together, `shard_ranks` such groups hold a copy of the model together, and the copies follow each other.
    """

    topology: Topology
    nodes: tuple[str, ...]
    """In rank order."""
    tasks_per_node: int
    tensor_parallel: int
    shard_ranks: int

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return len(self.nodes) * self.tasks_per_node

    @property
    def copy_ranks(self) -> int:
        """Ranks that hold one copy of the model."""
        return self.shard_ranks * self.tensor_parallel

    @property
    def replicas(self) -> int:
        """Copies of the model."""
        return self.world_size // self.copy_ranks

    @cached_property
    def tensor_groups(self) -> list[Group]:
        """Ranks that compute with parts of the same matrices."""
        size = self.tensor_parallel
        return [tuple(range(start, start + size)) for start in range(0, self.world_size, size)]

    @cached_property
    def shard_groups(self) -> list[Group]:
        """Ranks over which FSDP shards the same weights."""
        size, step = self.copy_ranks, self.tensor_parallel
        starts = range(0, self.world_size, size)
        return [tuple(range(start + t, start + size, step)) for start in starts for t in range(step)]

    @cached_property
    def replica_groups(self) -> list[Group]:
        """Ranks that hold copies of the same shard."""
        return [tuple(range(start, self.world_size, self.copy_ranks)) for start in range(self.copy_ranks)]

    @cached_property
    def supernodes(self) -> dict[str, list[str]]:
        """The nodes of each supernode that is used, in rank order; a node that the file does not place is its own."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            found.setdefault(_supernode(self.topology, node), []).append(node)
        return found

    @cached_property
    def relay(self) -> list[Hop]:
        """The way of new weights, from the node of rank 0, parents before children.

        Each pod gets them once, each supernode once, each node once, so that a slow link carries a version only once.
        """
        root = self.nodes[0]
        hops: list[Hop] = []
        entry: dict[str | None, str] = {}
        for name, nodes in self.supernodes.items():
            home = self.topology.supernode_of(nodes[0])
            pod = name if home is None else home.pod
            parents = (entry.setdefault(pod, nodes[0]), root)
            hops += [self._hop(next(p for p in parents if p != nodes[0]), nodes[0])] if nodes[0] != root else []
            hops += [self._hop(nodes[0], node) for node in nodes[1:]]
        return hops

    def _hop(self, source: str, target: str) -> Hop:
        return Hop(source, target, self.topology.level(source, target))

    def level(self, one: int, other: int) -> Level:
        """How far apart two ranks are."""
        cards = [(self.nodes[rank // self.tasks_per_node], rank % self.tasks_per_node) for rank in (one, other)]
        return self.topology.level_of_cards(*cards)

    def widest(self, groups: Sequence[Group]) -> Level:
        """The level that holds each of the groups."""
        pairs = [pair for group in groups for pair in pairwise(group)]
        return LEVELS[max((LEVELS.index(self.level(*pair)) for pair in pairs), default=0)]

    @cached_property
    def notes(self) -> list[str]:
        """Where groups are slower than they could be, and why."""
        found = [f"{node} is not in the topology file" for node in self.nodes if node not in self.topology.home]
        widest = LEVELS.index(self.widest(self.tensor_groups))
        if self.tensor_parallel > self.tasks_per_node or widest > LEVELS.index("node"):
            found.append(
                f"tensor-parallel groups of {self.tensor_parallel} cross nodes, of which each has "
                f"{self.tasks_per_node} ranks: every layer waits for the network"
            )
        elif self._crosses_islands():
            found.append(f"tensor-parallel groups of {self.tensor_parallel} cross the islands of a node")
        if LEVELS.index(self.widest(self.shard_groups)) > LEVELS.index("supernode"):
            found.append(
                f"FSDP groups of {self.shard_ranks} cross supernodes: every layer's weights go over the slow links"
            )
        return found

    @property
    def idle_cards(self) -> int:
        """Cards of the nodes that have no rank."""
        homes = [self.topology.supernode_of(node) for node in self.nodes]
        return sum(self.topology.cards_of(home) - self.tasks_per_node for home in homes if home is not None)

    def _crosses_islands(self) -> bool:
        pairs = (pair for group in self.tensor_groups for pair in pairwise(group) if self.level(*pair) == "node")
        homes = [self.topology.supernode_of(self.nodes[one // self.tasks_per_node]) for one, _ in pairs]
        return any(home is not None and self.topology.islands_of(home) > 1 for home in homes)


def _supernode(topology: Topology, node: str) -> str:
    home = topology.supernode_of(node)
    return node if home is None else home.name
