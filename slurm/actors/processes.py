"""Actors without a scheduler: processes on this machine, each in a session of its own, found by their command lines.

None of them looks like the stage's job (`slurm.wait.local.MODULES`): an actor that is left over keeps no stage from
being started.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil

from slurm.actors.arrays import Array, logs_of
from slurm.wait.local import is_alive

MODULE = "slurm.actor"


def start(attempt: Path, array: Array, cpus: int) -> None:
    """Start those tasks of an array that do not run: after a kill half-way, the rest of them."""
    there = {_option(process, "--task") for process in processes(attempt, array)}
    for task in range(array.tasks):
        if str(task) in there:
            continue
        role = "evaluator" if task >= array.actors else "actor"
        command = [sys.executable, "-u", "-m", MODULE, str(attempt), "--role", role]
        command += ["--array", array.name, "--task", str(task), "--cpus", str(cpus)]
        with log_of(attempt, array, task).open("ab") as log:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": str(cpus)},
            )


def log_of(attempt: Path, array: Array, task: int) -> Path:
    """The log of a local actor."""
    return logs_of(attempt) / f"{array.number}_{task}_log.out"


def processes(attempt: Path, array: Array | None = None) -> list[psutil.Process]:
    """Live actors of an attempt, or of one of its arrays, on this machine; those that a person has started too.

    Not those of a Slurm job on this node: they end as jobs do.
    """
    return [process for process in psutil.process_iter() if _runs(process, attempt, array)]


def _runs(process: psutil.Process, attempt: Path, array: Array | None) -> bool:
    try:
        line = process.cmdline()
        ours = MODULE in line and bool({str(attempt), str(attempt.resolve())} & set(line))
        ours = ours and ("--array" in line or "SLURM_JOB_ID" not in process.environ())
        return ours and (array is None or array.name in line) and is_alive(process)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _option(process: psutil.Process, name: str) -> str:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        line = process.cmdline()
        return line[line.index(name) + 1]
    return ""
