"""Whether a partition has as many nodes of a kind as a job wants."""

import time
from collections.abc import Callable, Iterator

from slurm.ask.asked import Asked
from slurm.query.answers import Node
from slurm.query.nodelist import expand

Need = tuple[str, Callable[[Node], bool]]
"""What is asked of each node, as the end of a sentence, and whether a node has it."""


def too_few(asked: Asked, partition: str, nodes: list[Node]) -> str | None:
    """Why the partition has not enough nodes for the job, in or out of service; None when it has."""
    wanted, left = asked.shape.nodes, nodes
    if len(nodes) < wanted:
        return f"slurm.{asked.stage}.nodes is {wanted}, but partition {partition} has {_counted(nodes)}"
    for said, fits in _needs(asked, nodes):
        fewer = [node for node in left if fits(node)]
        if len(fewer) < wanted:
            of = f"{len(left)} nodes of partition {partition}" + (" that are left" if len(left) < len(nodes) else "")
            return f"{said}; the job wants {wanted} {_node(wanted)}, and only {len(fewer)} of the {of} will do"
        left = fewer
    return None


def _needs(asked: Asked, nodes: list[Node]) -> Iterator[Need]:
    shape, section = asked.shape, f"slurm.{asked.stage}"
    cores = shape.tasks_per_node * (shape.cpus_per_task or 1)
    most = max((node.cpus for node in nodes), default=0)
    each = f" with {shape.cpus_per_task} cpus_per_task" if shape.cpus_per_task else ""
    yield (
        f"{section}.tasks_per_node is {shape.tasks_per_node}{each}, which takes {cores} cores a node, but the largest "
        f"has {most}",
        lambda node: node.cpus >= cores,
    )
    most_cards = max((node.cards for node in nodes), default=0)
    yield (
        f"{section}.gpus_per_node is {shape.gpus_per_node}, but the most that a node has is {most_cards}",
        lambda node: node.cards >= shape.gpus_per_node,
    )
    constraint = asked.text("constraint") or ""
    features = {name.strip() for name in constraint.split("&") if name.strip()}
    known = {feature for node in nodes for feature in node.features}
    if features <= known:  # anything but names joined by `&` is left to sbatch
        yield f"{asked.key('constraint')} is {constraint!r}", lambda node: features <= node.features
    try:
        without = set(expand(asked.text("exclude") or ""))
    except ValueError:
        without = set[str]()  # which has been said elsewhere
    yield f"{asked.key('exclude')} is {asked.text('exclude')!r}", lambda node: node.name not in without
    avoided = [
        f"{name} until {time.strftime('%H:%M', time.localtime(entry.until))} ({entry.reason})"
        for name, entry in asked.avoided.items()
    ]
    yield (
        f"{asked.stage}: this run avoids {', '.join(avoided)}; remove {asked.run_folder / 'excluded.json'} to use them "
        "again",
        lambda node: node.name not in asked.avoided,
    )


def in_service(asked: Asked, partition: str, nodes: list[Node]) -> Iterator[str]:
    """A word on nodes that are missed now, and may come back."""
    left = [node for node in nodes if all(fits(node) for _, fits in _needs(asked, nodes))]
    working = [node for node in left if node.in_service]
    if len(working) < asked.shape.nodes <= len(left):
        out = ", ".join(f"{node.name} {node.state}" for node in left if not node.in_service)
        yield (
            f"{asked.stage}: slurm.{asked.stage}.nodes is {asked.shape.nodes}, and partition {partition} has "
            f"{len(working)} that fit and are in service ({out}); the job will wait for more"
        )


def _counted(nodes: list[Node]) -> str:
    out = [node for node in nodes if not node.in_service]
    return f"{len(nodes)} {_node(len(nodes))}" + (f", {len(out)} of them out of service" if out else "")


def _node(count: int) -> str:
    return "node" if count == 1 else "nodes"
