"""Why Slurm starts a job again, and what that has cost."""

import time
from collections.abc import Callable

from slurm.query import queue
from slurm.query.queue import NoAnswer, Said
from slurm.verdict import Verdict
from slurm.wait.display import Reading
from slurm.wait.lost import gone, listed

TRIES, TRY_SECONDS = 6, 0.7
"""The accounting is a little behind the queue."""
ROOM_TRIES, ROOM_SECONDS = 15, 2.0
"""Slurm cleans up on nodes before it starts another job there."""
SKEW_SECONDS = 60.0
"""Between the clocks of this machine and of Slurm's."""


def why_again(job_id: str, nodes: str, since: float, verdict: Verdict | None) -> str:
    """One line on why the job that ran on `nodes` at the Unix time `since` has to start again."""
    said, broken = None, dict[str, str]()
    for _ in range(TRIES):
        said, broken = _last_start(job_id, since), gone(nodes)
        if broken or said is not None:
            break
        time.sleep(TRY_SECONDS)
    if said and said.word == "PREEMPTED":
        return "was preempted by a job of higher priority, and starts again: by Slurm, or as a new job"
    if broken:
        return f"lost a node, which failed or does not answer: {listed(broken)}; Slurm starts the job again elsewhere"
    if said and said.word == "NODE_FAIL":
        return f"lost one of its nodes {nodes}, which has failed; Slurm starts the job again"
    if verdict and verdict.why == "stopped":
        return f"was requeued, and committed first ({verdict.message}); Slurm starts it again"
    if said and said.word == "REQUEUED":
        return "was requeued; Slurm starts it again"
    return "was ended by the cluster, which starts it again"


def made_room(job_id: str, nodes: str, since: float, runs_again: Callable[[], bool]) -> str:
    """For which job this one was preempted, if one starts on its nodes within a while, before it runs again.

    Else nothing. A job that is told of a preemption has itself requeued, and then Slurm calls it no preemption.
    """
    for _ in range(ROOM_TRIES):
        over = runs_again()
        try:
            rivals = [job for job in queue.runs_there_since(nodes, since - 5) if job.split()[0] != job_id]
        except NoAnswer:
            rivals = []
        if rivals:
            return f"has made room for job {rivals[0]}"
        if over:
            break
        time.sleep(ROOM_SECONDS)
    return ""


def went_on(before: Reading, now: Reading) -> str:
    """From where a new start went on, and how many steps it has to do again, as far as the last one told."""
    unit = now["unit"]
    lost = max(0, int(before["done"]) - int(now["first"])) if before["unit"] == unit else 0
    return f"goes on from {now['first']} of {now['total']} {unit}; {lost} {unit} are done again"


def _last_start(job_id: str, since: float) -> Said | None:
    try:
        return queue.last_start(job_id, since - SKEW_SECONDS)
    except NoAnswer:
        return None
