"""The actors of a run are asked for once, whatever is killed, more of them on demand, and none is left behind.

Who waits for the rl job calls `start_once` at each start of it, and `end` when it is over. What is asked for is noted
before the submit; an array whose submitter was killed is found by its name, or else submitted by who comes next.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from slurm.actors import processes
from slurm.actors.arrays import Array, arrays_lock, folder_of, logs_of, name_of, note, read_arrays
from slurm.actors.tasks import by_hand, living
from slurm.ask.share import has_actors, has_evaluator, local_cpus
from slurm.attempt import Request
from slurm.query import queue
from slurm.query.queue import NoAnswer
from slurm.record import Record
from slurm.wait import local


def start_once(
    request: Request, attempt: Path, record: Record, start: str, interrupts: Sequence[int] = ()
) -> Array | None:
    """Make sure that the actors of the rl job were asked for at this `start` of it; the array, if it is new.

    Those of an earlier start that live, in the queue too, are those of this one: an rl job that is requeued keeps its
    actors. Raises NoAnswer when Slurm must be asked first and does not answer, SubmitError, and QueueFull when Slurm
    takes no array at the moment.
    """
    if not has_actors(request):
        return None
    logs_of(attempt).mkdir(parents=True, exist_ok=True)
    logs_of(attempt).chmod(0o700)
    with arrays_lock(attempt):
        unfinished = _settle(request, attempt, interrupts)
        arrays = [array for array in read_arrays(attempt) if not array.over]
        if any(array.start == start for array in arrays):
            return next((array for array in unfinished if array.start == start), None)
        for array in arrays:
            if array.start and living(attempt, array):
                note(attempt, array.model_copy(update={"start": start}))
                return None
        array = _intend(request, attempt, record, request.slurm.actors.count, has_evaluator(request), start)
        return _submit(request, attempt, array, interrupts)


def add(request: Request, attempt: Path, record: Record, count: int) -> Array:
    """Ask for more actors of a run that goes on. Raises as `start_once` does."""
    logs_of(attempt).mkdir(parents=True, exist_ok=True)
    logs_of(attempt).chmod(0o700)
    with arrays_lock(attempt):
        _settle(request, attempt, ())
        return _submit(request, attempt, _intend(request, attempt, record, count, False, ""), ())


def end(attempt: Path, hurry: Callable[[], bool] = lambda: False, wait: bool = True) -> list[str]:
    """End all actors of an attempt that Qianka has asked for, and those of this machine; return the ids of the arrays.

    Local ones are waited for, unless the caller does not `wait`. Raises NoAnswer when Slurm could not be asked.
    """
    if not folder_of(attempt).exists():
        return []
    ended: list[str] = []
    with arrays_lock(attempt):
        for array in read_arrays(attempt):
            if array.over:
                continue
            array = _found(attempt, array)
            if array.executor == "slurm" and array.job_id is not None:
                queue.scancel(array.job_id)
                ended.append(array.job_id)
            note(attempt, array.model_copy(update={"over": True}))
    found = processes.processes(attempt)
    if wait:
        local.end(found, hurry)
    else:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
    return [*ended, *(str(process.pid) for process in found)]


def end_by_hand(attempt: Path) -> list[str]:
    """End the tasks of arrays that a person has submitted which play here; return their ids. Raises NoAnswer."""
    tasks = by_hand(attempt)
    for task in tasks:
        queue.scancel(task)
    return tasks


def _settle(request: Request, attempt: Path, interrupts: Sequence[int]) -> list[Array]:
    """See to the arrays whose submitter was killed before it had noted the job; return those that are submitted now."""
    submitted: list[Array] = []
    for array in read_arrays(attempt):
        if array.job_id is not None or array.over:
            continue
        found = _found(attempt, array)
        if found.job_id is None or found.executor == "local":  # of local ones those are started that do not run
            submitted.append(_submit(request, attempt, array, interrupts))
            continue
        from slurm.ask.array import finish_array

        finish_array(attempt, found)
        # Its tasks wait a minute for what their submitter had left undone, and then they fail.
        note(attempt, found.model_copy(update={"over": not living(attempt, found)}))
    return submitted


def _found(attempt: Path, array: Array) -> Array:
    """The array with its job's id, when the submitter was killed between the submit and the note."""
    if array.job_id is not None:
        return array
    found = queue.find_array(array.name, array.submitted) if array.executor == "slurm" else None
    return array.model_copy(update={"job_id": found})


def _intend(request: Request, attempt: Path, record: Record, actors: int, evaluator: bool, start: str) -> Array:
    number = max((array.number for array in read_arrays(attempt)), default=0) + 1
    array = Array(
        number=number,
        actors=actors,
        evaluator=evaluator,
        executor=record.executor,
        name=name_of(attempt, request.run, number),
        host=os.uname().nodename,
        submitted=time.time(),
        start=start,
    )
    note(attempt, array)
    return array


def _submit(request: Request, attempt: Path, array: Array, interrupts: Sequence[int]) -> Array:
    """Under the lock, in a child that outlives this process. Raises SubmitError, QueueFull."""
    from slurm.ask.array import submit_array
    from slurm.ask.submit import in_own_session, job_environment

    def work() -> None:
        if array.executor == "slurm":
            job_id = submit_array(request, attempt, array)
        else:
            with job_environment(request, {}):
                processes.start(attempt, array, local_cpus(request, "actors"))
            job_id = "local"
        note(attempt, array.model_copy(update={"job_id": job_id}))

    in_own_session(work, logs_of(attempt) / "submit.log", interrupts)
    return next(each for each in read_arrays(attempt) if each.number == array.number)


def withdrawn(attempt: Path) -> list[str]:
    """`end`, for one who goes on in any case: what Slurm did not hear, the actors find out for themselves."""
    try:
        return end(attempt)
    except NoAnswer:
        return []
