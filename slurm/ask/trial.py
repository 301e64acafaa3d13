"""`sbatch --test-only`: the last authority on whether a job may be submitted, the site's own plugins included."""

import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from slurm.ask.asked import Asked
from slurm.config import ActorsConfig
from slurm.query.environment import slurm_environment
from slurm.query.facts import SECONDS, Facts
from slurm.query.queue import QueueFull, submit_error

PASSES = re.compile(
    r"nodes? (are|is) busy|not available \(|not available now|Job dependency|configuration source|munge|authentication",
    re.IGNORECASE,
)
"""What another time may cure."""
NOW = re.compile(r"node configuration is not available", re.IGNORECASE)
"""What --test-only, unlike a submit, says also of nodes that are reserved, drained or down at the moment."""
MEANT = (
    (r"partition", ("partition",)),
    (r"feature", ("constraint",)),
    (r"reservation", ("reservation",)),
    (r"node name|node list", ("nodelist", "exclude")),
    (r"account", ("account", "partition")),
    (r"qos", ("qos",)),
    (r"licen[sc]e", ("licenses",)),
    (r"time limit", ("minutes",)),
    (
        r"node configuration|node count|CPU|memory",
        (
            "nodes",
            "tasks_per_node",
            "cpus_per_task",
            "gpus_per_node",
            "constraint",
            "nodelist",
            "exclude",
            "mem",
            "gres",
        ),
    ),
)
SHAPE = ("nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "minutes")


def trials(asked: Sequence[Asked], facts: Facts) -> list[str]:
    """What sbatch says against the jobs; nothing where it does not answer in time."""
    with ThreadPoolExecutor(len(asked) or 1) as pool:
        said = list(pool.map(_trial, asked))
    whole = facts.reservations == frozenset() and all(node.in_service for node in facts.nodes or [])
    return [
        f"sbatch refuses the job of {each.stage}: {words} ({', '.join(keys_meant(each, words))})"
        for each, words in zip(asked, said, strict=True)
        if words and not PASSES.search(words) and (whole or not NOW.search(words))
    ]


def _trial(asked: Asked) -> str:
    """What sbatch says against a job; nothing when it would take it, now or later."""
    env = slurm_environment()
    command = ["sbatch", "--test-only", *flags(asked), "--wrap=true"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    said = " ".join((done.stderr + done.stdout).split()).removeprefix("sbatch: error: ")
    return "" if done.returncode == 0 or isinstance(submit_error(said), QueueFull) else said


def flags(asked: Asked) -> list[str]:
    """The command line that asks for the same as the batch script."""
    shape = asked.shape
    options = {
        "nodes": shape.nodes,
        "ntasks-per-node": shape.tasks_per_node,
        "cpus-per-task": shape.cpus_per_task,
        "gpus-per-node": shape.gpus_per_node or None,
        "time": shape.minutes,
        "requeue": True,
        **({"array": f"0-{shape.count - 1}"} if isinstance(shape, ActorsConfig) and shape.count > 1 else {}),
        **asked.for_sbatch(),
    }
    return [
        f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items() if value is not None
    ]


def keys_meant(asked: Asked, said: str) -> list[str]:
    """The keys, with their values, that a message of sbatch may be about; all, when nobody knows."""
    shape = {name: getattr(asked.shape, name) for name in SHAPE}
    given = {name: (f"slurm.{asked.stage}.{name}", value) for name, value in shape.items() if value}
    given |= {name: (asked.key(name), value) for name, value in asked.for_sbatch().items()}
    if named := [f"{key}={value}" for name, (key, value) in given.items() if f"--{name}" in said]:
        return named
    meant = {name for pattern, names in MEANT if re.search(pattern, said, re.IGNORECASE) for name in names}
    shown = [f"{key}={value}" for name, (key, value) in given.items() if name in meant]
    return shown or [f"{key}={value}" for key, value in given.values()]
