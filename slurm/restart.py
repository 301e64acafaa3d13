"""Why Slurm starts a job again, and what that has cost."""

import time

from slurm import queue
from slurm.display import Reading
from slurm.queue import NoAnswer, Said
from slurm.verdict import Verdict

TRIES, TRY_SECONDS = 6, 0.7
"""The accounting is a little behind the queue."""
DRAINED = ("drain", "drng")
SKEW_SECONDS = 60.0
"""Between the clocks of this machine and of Slurm's."""


def why_again(job_id: str, nodes: str, since: float, verdict: Verdict | None) -> str:
    """One line on why the job that ran on `nodes` at the Unix time `since` has to start again."""
    said, broken, rivals = None, dict[str, str](), list[str]()
    for _ in range(TRIES):
        said, broken, rivals = _last_start(job_id, since), _broken(nodes), _rivals(nodes, since)
        if broken or rivals or (said is not None and said.word != "REQUEUED"):
            break
        time.sleep(TRY_SECONDS)
    room = f" to make room for job {rivals[0]}" if rivals else ""
    if said and said.word == "PREEMPTED":
        return f"was preempted{room or ' by a job of higher priority'}; Slurm starts it again"
    if broken:
        named = ", ".join(f"{node} ({state})" for node, state in broken.items())
        return f"lost a node, which failed or does not answer: {named}; Slurm starts the job again elsewhere"
    if said and said.word == "NODE_FAIL":
        return f"lost one of its nodes {nodes}, which has failed; Slurm starts the job again"
    if verdict and verdict.why == "stopped":
        return f"was requeued{room}, and committed first ({verdict.message}); Slurm starts it again"
    if said and said.word == "REQUEUED":
        return f"was requeued{room}; Slurm starts it again"
    return "was ended by the cluster, which starts it again"


def went_on(before: Reading, now: Reading) -> str:
    """From where a new start went on, and how many steps it has to do again, as far as the last one told."""
    unit = now["unit"]
    lost = max(0, int(before["done"]) - int(now["first"])) if before["unit"] == unit else 0
    return f"goes on from {now['first']} of {now['total']} {unit}; {lost} {unit} are done again"


def _broken(nodes: str) -> dict[str, str]:
    """Nodes that are gone; on one that is drained, jobs go on."""
    try:
        found = queue.broken_nodes(nodes) if nodes else {}
    except NoAnswer:
        return {}
    return {node: state for node, state in found.items() if state.endswith("*") or not state.startswith(DRAINED)}


def _rivals(nodes: str, since: float) -> list[str]:
    """A job that is told of a preemption has itself requeued, and then Slurm calls it no preemption."""
    try:
        return queue.runs_there_since(nodes, since) if nodes else []
    except NoAnswer:
        return []


def _last_start(job_id: str, since: float) -> Said | None:
    try:
        return queue.last_start(job_id, since - SKEW_SECONDS)
    except NoAnswer:
        return None
