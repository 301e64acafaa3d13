"""Nodes that are gone, and how long it takes until Slurm knows."""

import re
import time

from slurm.query import queue
from slurm.query.queue import NoAnswer

DRAINED = ("drain", "drng")
TIMEOUT_SECONDS = 300.0
"""SlurmdTimeout, where Slurm does not say it: after so long without an answer a node is down. This is its default."""
MARGIN_SECONDS = 30.0
LOOK_SECONDS = 2.0


def gone(nodes: str) -> dict[str, str]:
    """Those of `nodes` that do not answer or have failed, and Slurm's word for it. On one that drains, jobs go on."""
    try:
        found = queue.broken_nodes(nodes) if nodes else {}
    except NoAnswer:
        return {}
    return {node: state for node, state in found.items() if state.endswith("*") or not state.startswith(DRAINED)}


def listed(nodes: dict[str, str]) -> str:
    """For a person: mx1 (down*), mx2 (fail)."""
    return ", ".join(f"{node} ({state})" for node, state in nodes.items())


def wait_for_loss(nodes: str) -> dict[str, str]:
    """`gone`, as soon as Slurm misses one of the nodes; nothing when it misses none in its time."""
    end = time.monotonic() + slurmd_timeout() + MARGIN_SECONDS
    while not (found := gone(nodes)) and time.monotonic() < end and nodes:
        time.sleep(LOOK_SECONDS)
    return found


def slurmd_timeout() -> float:
    """Seconds after which Slurm calls a node down that does not answer."""
    try:
        lines = queue.ask("scontrol", "show", "config")
    except NoAnswer:
        return TIMEOUT_SECONDS
    found = re.search(r"^SlurmdTimeout\s*=\s*(\d+)", "\n".join(lines), re.MULTILINE)
    return float(found[1]) if found else TIMEOUT_SECONDS
