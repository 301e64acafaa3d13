"""Jobs without a scheduler: the processes of an attempt on this machine, found by their command lines."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from slurm.attempt import LOGS

CONTROLLER = "submitit.local._local"
"""Starts the ranks; its process id is the job's."""
MODULES = (CONTROLLER, "submitit.core._submit", "slurm.job")
GRACE_SECONDS = 30.0
"""Between TERM and KILL, for the checkpoint that a stage commits when it is asked to stop."""


def processes(attempt: Path) -> list[psutil.Process]:
    """Live processes that run an attempt: submitit's controller, the ranks, and what a person started by hand.

    The command line is asked, and not a noted process id: it also finds a job whose submitter died before the note,
    and is never wrong about a number that was given out again.
    """
    names = _names(attempt)
    return [process for process in psutil.process_iter() if _runs(process, names)]


def find(attempt: Path, job_id: str | None) -> psutil.Process | None:
    """One of `processes`; the one with the noted id, if it is one of them, without asking all the others."""
    if job_id is not None and job_id.isdigit() and psutil.pid_exists(int(job_id)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(job_id))
            if _runs(process, _names(attempt)):
                return process
    found = processes(attempt)
    return next((process for process in found if CONTROLLER in process.cmdline()), next(iter(found), None))


def _names(attempt: Path) -> set[str]:
    """What the command line of a process of an attempt may say: jobs are started with the whole path."""
    return {str(folder / file) for folder in (attempt, attempt.resolve()) for file in ("", LOGS)}


def _runs(process: psutil.Process, names: set[str]) -> bool:
    try:
        line = process.cmdline()
        return bool(names & set(line) and set(MODULES) & set(line)) and is_alive(process)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs; one that is dead but not yet reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def cancel(attempt: Path, hurry: Callable[[], bool]) -> None:
    """End an attempt's processes and what they started: TERM, time to commit unless there is a hurry, then KILL."""
    end(processes(attempt), hurry)


def end(asked: Sequence[psutil.Process], hurry: Callable[[], bool]) -> None:
    """End processes, which are told first, and what they started."""
    victims = list(asked)
    for process in asked:
        with contextlib.suppress(psutil.NoSuchProcess):
            victims.extend(process.children(recursive=True))
    for process in asked:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    latest = time.monotonic() + GRACE_SECONDS
    while any(is_alive(process) for process in victims) and time.monotonic() < latest and not hurry():
        time.sleep(0.05)
    for process in victims:
        if is_alive(process):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
