"""What a plan asks of the links: how many of each class every collective uses, and how much goes over each.

Rings follow the order of the ranks, each rank sending to the next one of its group. NCCL and MCCL build their own rings
and trees from what they find of the hardware; within a node theirs use other pairs, between nodes about as many.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slurm.topology.plan import Group, Plan
from slurm.topology.site import Level

WHEN = (
    "all-gather in each forward and each backward, reduce-scatter and gradient all-reduce in each backward, tensor "
    "all-reduce in each layer, relay for each version"
)


@dataclass(frozen=True)
class Load:
    """One collective."""

    name: str
    links: dict[Level, int]
    """Pairs of ranks (for the relay: of nodes) of which the one sends to the other."""
    share: float | None
    """Over each of these links and each time: how much of the model, counted in parameters. None: activations."""


def all_gather_share(ranks: int) -> float:
    """Of the gathered data, the part that a ring sends over each link: every rank passes on all parts but one.

    NCCL counts it so: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md (ReduceScatter, AllGather).
    """
    return (ranks - 1) / ranks


def all_reduce_share(ranks: int) -> float:
    """A ring all-reduce is a reduce-scatter and an all-gather (the same page, AllReduce)."""
    return 2 * (ranks - 1) / ranks


def loads(plan: Plan) -> list[Load]:
    """The collectives of a plan. Those of a group of one rank are left out."""
    part = 1 / plan.tensor_parallel
    gather = part * all_gather_share(plan.shard_ranks)
    reduce = part / plan.shard_ranks * all_reduce_share(plan.replicas)
    found = [
        Load("FSDP all-gather", _rings(plan, plan.shard_groups), gather),
        Load("FSDP reduce-scatter", _rings(plan, plan.shard_groups), gather),
        Load("gradient all-reduce", _rings(plan, plan.replica_groups), reduce),
        Load("tensor all-reduce", _rings(plan, plan.tensor_groups), None),
        Load("weights relay", dict(Counter(hop.level for hop in plan.relay)), 1.0),
    ]
    return [load for load in found if load.links]


def _rings(plan: Plan, groups: Sequence[Group]) -> dict[Level, int]:
    """Links by level of a ring through each group; a ring of two has two, one each way."""
    pairs = (pair for group in groups if len(group) > 1 for pair in zip(group, (*group[1:], group[0]), strict=True))
    return dict(Counter(plan.level(*pair) for pair in pairs))
