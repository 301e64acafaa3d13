"""Where a rank runs, read from whoever started it: Slurm, torchrun, submitit's local executor, or a person."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from data.job import Job
from slurm.attempt import JobFile
from slurm.query.nodelist import expand, expand_counts
from slurm.query.queue import end_time
from slurm.topology.allocation import place_task
from slurm.topology.site import load

RENDEZVOUS = "rendezvous"
COLLECTIVE_MARGIN_SECONDS = 300.0
"""Collectives wait longer than the watchdog, which knows more than the one whose patience ends first."""
ASK_SECONDS = 10.0
"""How long to wait for scontrol: at a moment when all ranks wait."""


@dataclass(frozen=True)
class Place:
    """What the environment of a rank says."""

    starter: str
    """slurm, torchrun, submitit or hand."""
    rank: int
    world_size: int
    local_rank: int
    node: str
    job_id: str
    restarts: int
    start: str
    """Tells this start of the job from every other one, so that ranks never meet those of an earlier start."""
    cpus: int | None
    """Cores that the scheduler gave to the rank; None when it gave none."""
    tasks: dict[str, int] = field(default_factory=dict[str, int])
    """Ranks of each node of the job; nothing where nobody says so."""


def somewhere(env: Mapping[str, str] = os.environ) -> Place:
    """What a rank says of itself as long as its place is not known."""
    rank, job_id = env.get("SLURM_PROCID", "0"), env.get("SLURM_JOB_ID", "unknown")
    node = env.get("SLURMD_NODENAME", os.uname().nodename)
    return Place("unknown", int(rank) if rank.isdecimal() else 0, 1, 0, node, job_id, 0, "unknown", None)


def read_place(env: Mapping[str, str] = os.environ) -> Place:
    """Find out who started this process. ValueError when Slurm's variables do not tell."""
    if "TORCHELASTIC_RUN_ID" in env:
        return _torchrun(env)
    if env.get("SUBMITIT_EXECUTOR") == "local":
        return _submitit(env)
    if "SLURM_STEP_ID" in env:
        return _slurm(env)
    start = f"hand-{os.getpid()}"
    return Place("hand", 0, 1, 0, "localhost", start, 0, start, None)


def _torchrun(env: Mapping[str, str]) -> Place:
    restarts = int(env.get("TORCHELASTIC_RESTART_COUNT", "0"))
    run, alone = env["TORCHELASTIC_RUN_ID"], env.get("GROUP_WORLD_SIZE", "1") == "1"
    # The run id is "none" unless the user gives one, so that of one node also names its agent.
    start = f"torchrun-{run}-{os.getppid()}-{restarts}" if alone else f"torchrun-{run}-{restarts}"
    return Place(
        starter="torchrun",
        rank=int(env["RANK"]),
        world_size=int(env["WORLD_SIZE"]),
        local_rank=int(env["LOCAL_RANK"]),
        node="localhost" if alone else os.uname().nodename,
        job_id=env.get("SLURM_JOB_ID", f"torchrun-{run}"),
        restarts=restarts,
        start=start,
        cpus=None,
    )


def _submitit(env: Mapping[str, str]) -> Place:
    job_id = env["SUBMITIT_LOCAL_JOB_ID"]
    return Place(
        starter="submitit",
        rank=int(env["SUBMITIT_LOCAL_GLOBALID"]),
        world_size=int(env["SUBMITIT_LOCAL_NTASKS"]),
        local_rank=int(env["SUBMITIT_LOCAL_LOCALID"]),
        node="localhost",
        job_id=job_id,
        restarts=0,
        start=f"local-{job_id}",
        cpus=None,
    )


def _slurm(env: Mapping[str, str]) -> Place:
    job_id, restarts = env["SLURM_JOB_ID"], int(env.get("SLURM_RESTART_COUNT", "0"))
    node = env.get("SLURMD_NODENAME", os.uname().nodename)
    if int(env.get("SLURM_HET_SIZE", "1")) > 1:
        raise ValueError(
            f"job {job_id} is a heterogeneous one, whose parts do not see each other; submit one of a kind"
        )
    nodes, counts = env.get("SLURM_STEP_NODELIST", ""), env.get("SLURM_STEP_TASKS_PER_NODE", "")
    names, numbers = (expand(nodes), expand_counts(counts)) if nodes and counts else ([], [])
    if len(names) != len(numbers):
        raise ValueError(
            f"Slurm says that the step has {len(numbers)} nodes ({counts} tasks) and names others: {nodes}"
        )
    tasks = dict(zip(names, numbers, strict=True))
    given = env.get("SLURM_CPUS_PER_TASK")
    if given is None and "SLURM_CPUS_ON_NODE" in env:
        given = str(max(1, int(env["SLURM_CPUS_ON_NODE"]) // tasks.get(node, 1)))
    return Place(
        starter="slurm",
        rank=int(env["SLURM_PROCID"]),
        world_size=int(env.get("SLURM_STEP_NUM_TASKS", env.get("SLURM_NTASKS", "1"))),
        local_rank=int(env["SLURM_LOCALID"]),
        node=node,
        job_id=job_id,
        restarts=restarts,
        start=f"slurm-{job_id}-{env['SLURM_STEP_ID']}-{restarts}",
        cpus=None if given is None else int(given),
        tasks=tasks,
    )


def make_job(place: Place, job_file: JobFile, attempt: Path) -> Job:
    """The job as the stage sees it, its ranks in the order of the site's topology.

    `place.rank` stays the number of Slurm's task, by which logs and verdicts are named; 0 is 0 in both.
    """
    rank, shard_ranks = place.rank, job_file.shard_ranks
    if job_file.topology and len(place.tasks) > 1 and len(set(place.tasks.values())) == 1:
        rank, plan = place_task(job_file.topology, place.tasks, place.node, place.local_rank, shard_ranks)
        shard_ranks = plan.shard_ranks
        for note in plan.notes if rank == 0 else ():
            print(f"note: {note}", flush=True)
    return Job(
        rank=rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        node=place.node,
        supernode=supernode_of(job_file, place.node),
        rendezvous=None if place.world_size == 1 else attempt / RENDEZVOUS / f"{place.start}.json",
        interface=job_file.interface,
        cpus=place.cpus or job_file.cpus,
        shard_ranks=shard_ranks,
        job_id=place.job_id,
        restarts=place.restarts,
        start_seconds=60 * job_file.watch.start_minutes,
        collective_seconds=60 * max(job_file.watch.stall_minutes, job_file.watch.slow_minutes)
        + COLLECTIVE_MARGIN_SECONDS,
        ends_at=ends_at(place, job_file.minutes) if place.rank == 0 else None,
        find_end=partial(end_time, place.job_id, ASK_SECONDS) if place.starter == "slurm" else lambda: None,
    )


def supernode_of(job_file: JobFile, node: str) -> str:
    """Name of the node's supernode; empty without a topology, or for a node that it does not place."""
    found = load(Path(job_file.topology)).supernode_of(node) if job_file.topology else None
    return found.name if found else ""


def ends_at(place: Place, minutes: int, env: Mapping[str, str] = os.environ) -> float | None:
    """Unix time at which Slurm ends the allocation, as it says itself; None without Slurm.

    Older versions put it in no variable, so scontrol is asked; where compute nodes have no scontrol, it is the start
    of the allocation, or else of this process, plus the minutes that were asked for.
    """
    if place.starter != "slurm":
        return None
    if "SLURM_JOB_END_TIME" in env:
        return float(env["SLURM_JOB_END_TIME"])
    found = end_time(place.job_id, ASK_SECONDS)
    if found is not None:
        return found
    return float(env.get("SLURM_JOB_START_TIME", time.time())) + 60 * minutes
