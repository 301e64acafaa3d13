"""Which tasks of an array live, by squeue or by their processes; and which arrays a person has submitted."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from slurm.actors import processes
from slurm.actors.arrays import Array, read_arrays
from slurm.query import queue
from slurm.query.words import state_words
from slurm.wait.state import ENDED

TABLE = "actors.json"
"""Of the coordinator, in the attempt's folder (stages/rl/coordinator/table.py)."""


@dataclass(frozen=True)
class Task:
    """A task that has not ended."""

    job: str
    """By which a person ends it: `123_4` for scancel, or a process."""
    state: str
    is_running: bool


def living(attempt: Path, array: Array) -> list[Task]:
    """Tasks of an array that wait or run. Raises NoAnswer when Slurm could not be asked.

    One that squeue calls preempted or lost may come back, and is counted until squeue has forgotten it.
    """
    if array.executor == "local":
        here = array.host == os.uname().nodename
        found = processes.processes(attempt, array) if here else []
        return [Task(str(process.pid), "running", True) for process in found]
    if array.job_id is None:
        return []
    tasks = [each for each in queue.array_tasks(array.job_id, array.name) if each[1].word not in ENDED]
    return [Task(job, state_words(said.state, said.reason, said.nodes), said.word == "RUNNING") for job, said in tasks]


def by_hand(attempt: Path) -> list[str]:
    """Tasks that play, as far as the coordinator knows, of arrays that Qianka has not submitted.

    Of these alone: the rest of such an array may have other work to do.
    """
    path = attempt / TABLE
    members = json.loads(path.read_text())["members"] if path.exists() else []
    ours = {array.job_id for array in read_arrays(attempt)}
    tasks = {member["job"] for member in members if re.fullmatch(r"\d+_\d+", member["job"])}
    return sorted(task for task in tasks if task.partition("_")[0] not in ours)
