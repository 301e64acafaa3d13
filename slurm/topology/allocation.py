"""The nodes that Slurm gave, on the site's topology: which rank a task is, and how many ranks share the weights."""

from collections.abc import Mapping
from pathlib import Path

from slurm.topology.planner import arrange, rank_order
from slurm.topology.site import load


def place_task(
    file: str, tasks: Mapping[str, int], node: str, local_rank: int, shard_ranks: int | None
) -> tuple[int, int]:
    """Rank and FSDP group size of a task, the same by every task's count; task 0 is rank 0.

    `tasks` are the tasks of each node of the step, in Slurm's order; all nodes have as many. Raises ValueError when
    the file is not there or wrong, or when `shard_ranks` does not divide the job.
    """
    topology, nodes = load(Path(file)), list(tasks)
    (each,) = set(tasks.values())
    order = rank_order(topology, nodes, each)
    return order[nodes.index(node) * each + local_rank], arrange(topology, nodes, each, shard_ranks).shard_ranks
