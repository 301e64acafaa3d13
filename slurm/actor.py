"""The process of an actor: find out where it runs, play for the rl attempt it is given, and say how it ended.

Started by submitit (`slurm.ask.array`), by `srun`, as one of the local processes of `slurm.actors`, or by hand, as
`python -m slurm.actor ATTEMPT_FOLDER`. Actors know nothing of each other: each comes, goes and fails alone, so each has
a folder of its own, `ATTEMPT/actors/<its name>`, with its verdict and its watchdog's files. torch is imported by
`stages.rl.actor`, not here.
"""

import importlib
import os
import sys
import threading
import time
import traceback
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from checkpoints.manifest import ATTEMPT, NAME
from data.job import Job, Stopped
from slurm.actors.arrays import folder_of_member, is_rival
from slurm.attempt import LOGS, JobFile, read_job_file
from slurm.devices.read import kind_of_node
from slurm.exclusions import excluded
from slurm.inside import environment, watchdog
from slurm.inside.log import show_log
from slurm.inside.place import Place, read_place, supernode_of
from slurm.job import (
    FAILED,
    MAX_RESTARTS,
    STOPPED,
    Signals,
    ask_to_requeue,
    check_packages,
    raise_file_limit,
    read_task,
    verdict_of,
)
from slurm.verdict import BadNode, Verdict, clear_verdict, write_verdict

ACTOR, EVALUATOR = "actor", "evaluator"
LOOK_SECONDS = 5.0
"""Between two looks at whether the run is done, for the actor that nobody can tell so."""


def run_actor(attempt: Path, role: str = ACTOR, name: str = "", task: int = 0, cpus: int | None = None) -> int:
    """Play for an attempt of the rl stage until someone says that it is enough, and return the exit code.

    `name` is that of the array, for one that Qianka has submitted; `task` and `cpus` are the number in the array and
    the cores of a local process.
    """
    show_log()
    try:
        place = actors_place(cpus)
    except ValueError as error:
        print(f"error: {error}", flush=True)
        return FAILED
    folder = folder_of_member(attempt, member_of(place))
    alone = replace(place, rank=0, world_size=1, tasks={})
    try:
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
        clear_verdict(folder, 0)
        check_packages()
        job_file = read_job_file(attempt)
        if place.starter == "hand":  # the first cards of this machine are the learners'
            place = replace(place, local_rank=job_file.tasks_per_node + task)
        return _work(attempt, job_file, folder, place, alone, role, name)
    except Exception as error:  # noqa: BLE001 - it is told to whoever asks what became of the actor, which fails
        verdict = verdict_of(error, attempt, alone)
        if verdict.why == "error":
            traceback.print_exc()
        else:
            print(f"error: {verdict.message}", flush=True)
        write_verdict(folder, verdict)
        return FAILED


def actors_place(cpus: int | None, env: Mapping[str, str] = os.environ) -> Place:
    """Where this actor runs: `job_id` is that of its array task, `rank` its number within the task."""
    place = read_place(env)
    if place.starter == "hand":
        return replace(place, job_id=str(os.getpid()), cpus=cpus)
    if "SLURM_ARRAY_JOB_ID" in env:
        # SLURM_JOB_ID of one of the tasks is that of the array: to requeue it would be to requeue all of them.
        return replace(place, job_id=f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}")
    return place


def member_of(place: Place) -> str:
    """The name of an actor's folder: the same at every start of its job. As a member it has `+N` behind it after N."""
    return f"{place.job_id}.{place.rank}"


def _work(attempt: Path, job_file: JobFile, folder: Path, place: Place, alone: Place, role: str, name: str) -> int:
    if is_rival(attempt, name, place.job_id):
        print(f"another array has the name {name} and does the work of this one, which ends", flush=True)
        return 0
    if (attempt / NAME).exists():
        print(f"{attempt.name} is done; there is nothing to play", flush=True)
        return 0
    roll = watchdog.begin(folder, alone)
    raise_file_limit()
    os.environ["OMP_NUM_THREADS"] = str(place.cpus or job_file.cpus)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment.apply(job_file, kind_of_node())
    job = _job(place, job_file)
    signals = Signals(job)
    _avoid_excluded(place, job_file, attempt)
    threading.Thread(target=_watch_the_run, args=(attempt, job, signals), daemon=True).start()
    with watchdog.watched(folder, alone, job, job_file, roll), suppress(Stopped):
        stage, config, inputs = read_task(job_file, attempt, look_at_files=False)
        if stage != "rl":
            raise ValueError(f"{attempt} is an attempt of {stage}, which has no actors; give one of the rl stage")
        again = f", start {job.restarts + 1}" if job.restarts else ""
        print(f"{role} {member_of(place)} of {attempt.name} on {place.node}{again}", flush=True)
        importlib.import_module("stages.rl.actor.run").run(config, inputs, attempt, job, role)
    return leave(signals, place, attempt, folder, alone)


def _job(place: Place, job_file: JobFile) -> Job:
    """The actor's job: it is the only rank of it, and `rank` no more than a part of its name."""
    return Job(
        rank=place.rank,
        world_size=1,
        local_rank=place.local_rank,
        node=place.node,
        supernode=supernode_of(job_file, place.node),
        interface=job_file.interface,
        cpus=place.cpus or job_file.cpus,
        job_id=place.job_id,
        restarts=place.restarts,
        start_seconds=60 * job_file.watch.start_minutes,
    )


def _avoid_excluded(place: Place, job_file: JobFile, attempt: Path) -> None:
    """Raise BadNode on a node that the run avoids, as after a requeue."""
    entry = excluded((attempt / job_file.run_folder).resolve()).get(place.node) if place.starter == "slurm" else None
    if entry is not None:
        raise BadNode(
            (place.node,), f"this run avoids {place.node} ({entry.reason}); `qianka actors add` brings others"
        )


def _watch_the_run(attempt: Path, job: Job, signals: Signals) -> None:
    """End the actor when the attempt has its result: it may have come too late for anyone to tell it."""
    while not (attempt / NAME).exists():
        time.sleep(LOOK_SECONDS)
    signals.ended.set()
    job.stop.set()


def leave(signals: Signals, place: Place, attempt: Path, folder: Path, alone: Place) -> int:
    """0 for an actor that was sent home. One whose time is over has its task start again, and so lives on."""
    if not signals.job.stop_requested or (attempt / NAME).exists():
        return 0
    if signals.ended.is_set():
        return STOPPED
    if place.starter != "slurm" or place.rank != 0:
        return 0
    if place.restarts >= MAX_RESTARTS:
        write_verdict(folder, Verdict.of("error", f"not requeued again after {place.restarts} restarts", alone))
        return FAILED
    ask_to_requeue(place.job_id)
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m slurm.actor ATTEMPT_FOLDER`."""
    parser = ArgumentParser(prog="python -m slurm.actor")
    parser.add_argument("attempt", type=Path, help="attempt folder of the rl stage: runs/NAME/rl/FINGERPRINT-NUMBER")
    parser.add_argument("--role", choices=(ACTOR, EVALUATOR), default=ACTOR)
    parser.add_argument("--array", default="", help="name of the array, of a local process that Qianka has started")
    parser.add_argument("--task", type=int, default=0, help="number in the array, of a local process")
    parser.add_argument("--cpus", type=int, help="cores of a local process")
    given = parser.parse_args(arguments)
    if not (given.attempt / ATTEMPT).exists():
        parser.error(f"{given.attempt} is no attempt folder")
    code = run_actor(given.attempt.resolve(), given.role, given.array, given.task, given.cpus)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no thread of a library keeps an actor that has left


if __name__ == "__main__":
    main()
