"""Which attempt makes a stage's result, and which job makes the attempt: one, whatever was killed before."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from checkpoints.manifest import digest
from slurm.actors.ask import end
from slurm.ask import submit
from slurm.ask.share import local_cpus
from slurm.attempt import LOGS, Request, is_cancelled, mark_cancelled, open_attempt
from slurm.query import queue
from slurm.record import FILE as RECORD
from slurm.record import Record, attempts, is_finished, read_record, record_lock, write_record
from slurm.verdict import clear_verdicts, read_verdict
from slurm.wait import local
from slurm.wait.state import Kind, State, cancel, query

SEE_OUT_SECONDS = 120.0
"""For a cancelled job to end: Slurm kills it KillWait (30 s by default) after it was told."""
RESULT_SECONDS = 75.0
"""For a file that another machine has written to be seen here."""

How = Literal["submitted", "resumed", "re-attached", "found finished"]


@dataclass(frozen=True)
class Attached:
    """The attempt that makes the stage's result, and how its job was come by."""

    record: Record
    folder: Path
    """The attempt folder."""
    how: How


class Withdrawn(Exception):
    """A person has cancelled the job while another one was about to take its place."""


def submit_or_attach(request: Request, after: Attached | None = None, interrupts: Sequence[int] = ()) -> Attached:
    """Make sure that one job, and only one, works on what is asked for, whatever was killed before.

    `after` is the job of the caller that has just ended, and that a new one is to follow. `interrupts` are signals,
    which end the wait for a slow submit.

    Raises ValueError when an input is missing, NoAnswer when Slurm must be asked first and does not answer, QueueFull
    when Slurm takes no job at the moment, SubmitError when it takes none like this, and Withdrawn.
    """
    folder, fingerprint = request.folder, request.fingerprint()
    with record_lock(folder):
        if after and is_cancelled(after.folder, after.record.job_id):
            raise Withdrawn(f"job {after.record.job_id} was cancelled")
        earlier, number = _under_way(folder, fingerprint)
        attempt = folder / f"{fingerprint}-{number}"
        # Who waited for a job has seen to it that its result is there, if there is one.
        wait = 0.0 if after else RESULT_SECONDS
        if earlier:
            kind = _settled(folder, earlier, wait, interrupts).kind
            if kind is Kind.RETURNING and after and after.record.job_id == earlier.job_id:
                cancel(folder, earlier)  # it has not come back for as long as its waiter's patience, and must not now
            elif kind not in (Kind.ENDED, Kind.FINISHED):
                write_record(folder, earlier)
                return Attached(earlier, attempt, "re-attached")
        record = _intend(request, fingerprint, number)
        if is_finished(attempt):
            record = earlier or record  # which has the id of the job that made it
            write_record(folder, record)
            return Attached(record, attempt, "found finished")
        resumed = attempt.exists()
        open_attempt(request, attempt, local_cpus(request))
        clear_verdicts(attempt)
        write_record(folder, record)
        submit.in_own_session(lambda: _submit(request, attempt, record), attempt / LOGS / "submit.log", interrupts)
    submitted = read_record(folder)
    assert submitted, "it was written before the submit"
    if submitted.job_id is None:
        raise queue.QueueFull("the process that submits was killed before it had noted the job")
    return Attached(submitted, attempt, "resumed" if resumed else "submitted")


def take_over(request: Request, job_id: str | None) -> Attached:
    """Note that the caller itself is the job: Slurm's `job_id`, or processes that a person starts here.

    A job that has taken over already, and was requeued, goes on with its attempt, whatever became of the config since;
    also when it was requeued after its result was taken. To ask again within one start is to want a new attempt.
    Raises ValueError when another job works on the attempt.
    """
    folder, fingerprint = request.folder, request.fingerprint()
    with record_lock(folder):
        mine = read_record(folder)
        if mine and job_id and mine.job_id == job_id and mine.executor == "slurm" and _goes_on(mine, fingerprint):
            clear_verdicts(folder / mine.attempt)
            return Attached(mine, folder / mine.attempt, "resumed")
        record, number = _under_way(folder, fingerprint)
        attempt = folder / f"{fingerprint}-{number}"
        if record:
            state = query(folder, record)
            if state.kind not in (Kind.ENDED, Kind.FINISHED):
                raise ValueError(f"{attempt}: job {record.job_id} works on this already ({state.text})")
        resumed = attempt.exists()
        open_attempt(request, attempt, local_cpus(request))
        clear_verdicts(attempt)
        ours = {"executor": "slurm", "job_id": job_id} if job_id else {"executor": "local", "job_id": None}
        if job_id and "SLURM_JOB_NAME" in os.environ:
            ours["job_name"] = os.environ["SLURM_JOB_NAME"]
        record = _intend(request, fingerprint, number).model_copy(update=ours)
        write_record(folder, record)
    return Attached(record, attempt, "resumed" if resumed else "submitted")


def _goes_on(mine: Record, fingerprint: str) -> bool:
    restarted = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
    return not mine.accepted or (restarted and mine.fingerprint == fingerprint)


def withdraw(folder: Path) -> str | None:
    """End the job of a stage folder as a person's wish, and return its id; None when there is none.

    Whoever waits for it submits no other one. Raises NoAnswer when Slurm could not be asked.
    """
    with record_lock(folder):
        record = read_record(folder)
        if record is None or record.accepted:
            return None
        found = find_job(folder / record.attempt, record)
        if found != record:
            write_record(folder, found)
        if found.job_id is None or query(folder, found).kind in (Kind.ENDED, Kind.FINISHED):
            return None
        mark_cancelled(folder / found.attempt, found.job_id)
        cancel(folder, found)
    return found.job_id


def _under_way(folder: Path, fingerprint: str) -> tuple[Record | None, int]:
    """The record of the attempt that is to be made, if there was one, and the attempt's number.

    It is the one under way; or a new one when the result of the last one was taken; or, for a fingerprint of earlier
    times, the last attempt at that. The job of any other fingerprint is ended.
    """
    record = read_record(folder)
    if record and record.fingerprint != fingerprint:
        _retire(folder, record)
        record = None
    if record is None:
        return None, max(attempts(folder, fingerprint), default=1)
    if record.accepted:
        return None, record.number + 1
    return find_job(folder / record.attempt, record), record.number


def _retire(folder: Path, record: Record) -> None:
    """End the job of another config, input or code, which nobody waits for any more; its checkpoints stay."""
    if record.accepted:
        return
    record = find_job(folder / record.attempt, record)
    if query(folder, record).kind not in (Kind.ENDED, Kind.FINISHED):
        # Not to standard output, where `qianka stage --here` prints the attempt folder for a script.
        said = f"{record.stage}: ending job {record.job_id} of {record.attempt}, which is no longer asked for"
        print(said, file=sys.stderr, flush=True)
        cancel(folder, record)
        end(folder / record.attempt)
        see_out(folder, record)


def _settled(folder: Path, record: Record, wait: float, interrupts: Sequence[int]) -> State:
    """The state of a job. After one that ended well and has not said why there is no result, one is waited for."""
    attempt, latest = folder / record.attempt, time.monotonic() + wait
    while True:
        if attempt.exists():
            list(attempt.iterdir())  # has NFS look at the folder again, whose new files it may else show a minute late
        state = query(folder, record)
        said_why = not attempt.exists() or read_verdict(attempt)
        if state.kind is not Kind.ENDED or state.word != "COMPLETED" or said_why:
            return state
        if interrupts or time.monotonic() > latest:
            return state
        time.sleep(0.5)


def see_out(folder: Path, record: Record) -> None:
    """Wait until a cancelled job has ended: it may be asked for again in a moment, and must not meet itself."""
    latest = time.monotonic() + SEE_OUT_SECONDS
    while query(folder, record).kind not in (Kind.ENDED, Kind.FINISHED):
        if time.monotonic() > latest:
            raise ValueError(
                f"{folder}: job {record.job_id} was cancelled {SEE_OUT_SECONDS:.0f} s ago and has not ended yet; "
                "run again when it has"
            )
        time.sleep(0.5)


def find_job(attempt: Path, record: Record) -> Record:
    """The record with its job's id, when the submitter was killed between the submit and the note."""
    if record.job_id is not None:
        return record
    job_id = _search(attempt, record)
    if job_id is not None:
        submit.finish_submit(attempt, job_id)
    return record.model_copy(update={"job_id": job_id})


def _search(attempt: Path, record: Record) -> str | None:
    if record.executor == "local":
        process = local.find(attempt, None)
        return str(process.pid) if process else None
    try:
        return queue.find_by_name(record.job_name, record.submitted)
    except queue.NoAnswer as error:
        raise queue.NoAnswer(
            f"{error}\nso nobody can tell whether the job {record.job_name} was submitted; run again when Slurm "
            f"answers, or delete {attempt.parent / RECORD} if you know that it was not"
        ) from error


def _intend(request: Request, fingerprint: str, number: int) -> Record:
    place = digest(str(request.folder))[:6]  # two clones may have runs of one name
    return Record(
        stage=request.stage,
        fingerprint=fingerprint,
        number=number,
        executor=queue.choose_executor(request.slurm),
        job_name=f"{request.run}-{request.stage}-{fingerprint}-{number}-{place}",
        host=os.uname().nodename,
        submitted=time.time(),
    )


def _submit(request: Request, attempt: Path, record: Record) -> None:
    start = submit.submit_to_slurm if record.executor == "slurm" else submit.submit_locally
    job_id = start(request, attempt, record.job_name)
    write_record(request.folder, record.model_copy(update={"job_id": job_id}))
