"""The nodes that Slurm gave, on the site's topology: which rank a task is, and how many ranks share the weights."""

from collections.abc import Mapping
from pathlib import Path

from slurm.topology.plan import Plan
from slurm.topology.planner import Need, arrange, plan, rank_order
from slurm.topology.site import Topology, load


def place_task(
    file: str, tasks: Mapping[str, int], node: str, local_rank: int, shard_ranks: int | None
) -> tuple[int, Plan]:
    """The rank of a task, and the plan of the job, which all tasks find alike. Task 0 is rank 0.

    `tasks` are the tasks of each node of the step, in Slurm's order; all nodes have as many. Raises ValueError when
    the file is not there or wrong, or when `shard_ranks` does not divide the job.
    """
    topology, nodes = load(Path(file)), list(tasks)
    (each,) = set(tasks.values())
    rank = rank_order(topology, nodes, each)[nodes.index(node) * each + local_rank]
    return rank, arrange(topology, nodes, each, shard_ranks or _planned(topology, nodes, each))


def _planned(topology: Topology, nodes: list[str], tasks_per_node: int) -> int | None:
    """The FSDP group size that such a job was planned with, whichever nodes it got.

    The memory of a rank and the order in which sums are rounded depend on it, so they are those of every other start,
    and a group that crosses supernodes is slow but fits. None when the job has nodes that the file does not place.
    """
    if any(node not in topology.home for node in nodes):
        return None
    return plan(topology, Need(len(nodes), tasks_per_node)).shard_ranks
