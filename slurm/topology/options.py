"""How a plan is said to Slurm, so that it can be had without waiting for particular nodes."""

from slurm.topology.choose import eligible
from slurm.topology.plan import Plan

WAIT_MINUTES = 60
"""How long a job waits at most for so few leaf switches; a site's `max_switch_wait`, 5 minutes unless set, ends it
earlier."""


def sbatch_options(plan: Plan) -> dict[str, str | int | bool]:
    """Options of sbatch by their long names.

    No list of nodes: with one the job would wait for these nodes, and for the one of them that is broken. A number of
    leaf switches, the size of a segment or one of several features can be met by any nodes that are free.
    """
    used, scheduler = len(plan.supernodes), plan.topology.scheduler
    if len(plan.nodes) == 1 or used == len(plan.nodes):
        return {}  # any nodes will do
    if scheduler == "tree":
        return {"switches": f"{used}@{WAIT_MINUTES}"}
    if scheduler == "block":
        return {"segment": segment(plan)}
    if scheduler == "features" and used == 1:
        free = eligible(plan.topology, plan.tasks_per_node)
        fitting = [
            s.name for s, names in zip(plan.topology.supernodes, free, strict=True) if len(names) >= len(plan.nodes)
        ]
        return {"constraint": f"[{'|'.join(fitting)}]"}
    return {}


def segment(plan: Plan) -> int:
    """The largest number of nodes that divides the part of each supernode: only a segment has to lie in a block."""
    parts = [len(nodes) for nodes in plan.supernodes.values()]
    return max(size for size in range(1, min(parts) + 1) if all(part % size == 0 for part in parts))


def option_notes(plan: Plan) -> list[str]:
    """What Slurm will not do for this plan."""
    used, scheduler = len(plan.supernodes), plan.topology.scheduler
    if len(plan.nodes) == 1 or used == len(plan.nodes):
        return []
    if scheduler == "none":
        return ["Slurm knows nothing of the supernodes (scheduler: none), so it may spread the job over more of them"]
    if scheduler == "features" and used > 1:
        return ["features cannot ask for several supernodes, so Slurm may spread the job over more of them"]
    return []
