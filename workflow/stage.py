"""One stage of a run: make sure that its job exists, wait for it, publish its result."""

import os
import signal
import time
from pathlib import Path

from data.progress import read_progress
from slurm.actors.crew import Crew
from slurm.attempt import Request, publish
from slurm.claim import Attached, Withdrawn, submit_or_attach, take_over, withdraw
from slurm.exclusions import pardon
from slurm.query.queue import NoAnswer, QueueFull, SubmitError
from slurm.record import accept, is_finished, read_record
from slurm.wait.attach import Waiter, failure, interrupts_noted
from slurm.wait.callers import WATCHED, callers_alive
from slurm.wait.display import Display
from slurm.wait.judge import End, Judge
from workflow.config import RunConfig
from workflow.paths import RunPaths
from workflow.request import make_request
from workflow.session import begin

MAX_TRIES = 5
"""Jobs in a row for one attempt of which none committed a step."""
RETRY_SECONDS = 10.0
"""Until Slurm is asked again to take a job. One that a failed submit made all the same is in the queue by then."""
EXIT_CODES = {End.FINISHED: 0, End.FAILED: 1, End.AGAIN: 1, End.DETACHED: 75, End.CANCELLED: 130}


def run_stage(run: RunConfig, stage: str, cores: int | None, log: Path | None) -> int:
    """Submit or attach, wait, publish. Returns the exit code."""
    called = bool(os.environ.get(WATCHED))
    begin(run, [stage])
    request = make_request(run, stage, cores)
    with interrupts_noted() as interrupts, Display(stage, log) as display:
        end = _wait(request, display, interrupts)
        if end is not End.FINISHED:
            return EXIT_CODES[end]
        if not called:
            accept(request.folder)
    return 0


def _wait(request: Request, display: Display, interrupts: list[int]) -> End:
    """One job after the other, as long as each leaves to the next what it could not do, and some get on."""
    attached, tries, point = None, 0, None
    doubted: Judge | None = None
    while True:
        try:
            attached = _submit(request, display, interrupts, attached)
        except SubmitError:  # as when there are too few nodes without those under suspicion
            pardon(request.run_folder, doubted.suspects if doubted else ())
            raise
        if isinstance(attached, End):
            return attached
        accept_inputs(request)
        display.say(found(attached))
        crew = Crew(request, attached.folder, attached.record, display.say, interrupts)
        waiter = Waiter(attached, display, interrupts, crew.look)
        end = waiter.wait()
        if end is End.FINISHED:
            publish(request.folder, attached.folder, request.publish)
            display.say(f"published {attached.folder.name}")
        elif end is End.FAILED:
            display.say(failure(attached, waiter.text))
        if end is not End.DETACHED and (end is not End.AGAIN or attached.record.executor == "local"):
            crew.end()
        if end is not End.AGAIN:
            return end
        if attached.record.executor == "local":
            display.say("stopped after committing its progress; the same command resumes it")
            return end
        before, point = point, resumed_at(attached.folder)
        tries = tries + 1 if point == before else 1
        if waiter.judge.doubt and doubted and point == before:
            display.say(f"job {doubted.record.job_id} {doubted.doubt}; and job {attached.record.job_id} as well")
            pardon(request.run_folder, doubted.suspects + waiter.judge.suspects)
            display.say(failure(attached, waiter.judge.doubt))
            crew.end()
            return End.FAILED
        doubted = waiter.judge if waiter.judge.doubt else None
        if tries >= MAX_TRIES:
            display.say(f"{tries} jobs in a row ended without a committed step; see why before you run it again")
            display.say(failure(attached, waiter.text))
            crew.end()
            return End.FAILED


def resumed_at(attempt: Path) -> object:
    """The step from which the last start of an attempt went on, which is one that was committed."""
    reading = read_progress(attempt)
    return reading["first"] if reading else None


def _submit(request: Request, display: Display, interrupts: list[int], after: Attached | None) -> Attached | End:
    """The stage's job, as soon as Slurm takes it; or the end of the wait for that."""
    is_wanted, said = callers_alive(), ""
    while True:
        try:
            return submit_or_attach(request, after, interrupts)
        except Withdrawn as error:
            display.say(f"{error}; no other one is submitted, and the same command resumes")
            return End.FAILED
        except (QueueFull, NoAnswer) as error:
            if str(error) != said and not interrupts:
                said = str(error)
                display.say(f"Slurm takes no job now, so it is asked again every {RETRY_SECONDS:.0f} s: {said}")
        again = time.monotonic() + RETRY_SECONDS
        while time.monotonic() < again and not interrupts:
            if not is_wanted():
                return End.DETACHED
            time.sleep(0.1)
        if interrupts:
            return _give_up(request, display, interrupts[0])


def _give_up(request: Request, display: Display, number: int) -> End:
    """Leave before Slurm has said that it took the job, which it may have done all the same."""
    if number != signal.SIGINT:
        display.say("detached; the same command finds the job, or submits it")
        return End.DETACHED
    try:
        job_id = withdraw(request.folder)
    except NoAnswer as error:
        display.say(f"nobody can tell whether a job was submitted: {error}")
        return End.CANCELLED
    display.say(f"cancelled job {job_id}" if job_id else "no job was submitted")
    return End.CANCELLED


def found(attached: Attached) -> str:
    """How the job was come by, in a line."""
    kind = "Slurm job" if attached.record.executor == "slurm" else "process"
    job = f", {kind} {attached.record.job_id}" if attached.record.job_id else ""
    return f"{attached.how}: {attached.folder.name}{job}"


def accept_inputs(request: Request) -> None:
    """The inputs are in use: asking for one of them again is to want a new one."""
    for path in request.inputs.values():
        accept(path.parent)


def take_over_stage(run: RunConfig, stage: str, cores: int | None) -> Path:
    """Note that the Slurm job around this process is the stage's, and return the attempt folder."""
    job_id = os.environ.get("SLURM_JOB_ID")
    record = read_record(RunPaths(run.name).stage(stage))
    if record is None or job_id is None or record.job_id != job_id:
        begin(run, [])  # a job that was requeued has the run already, whoever waits for it by now
    return take_over(make_request(run, stage, cores), job_id).folder


def publish_stage(run: RunConfig, stage: str) -> None:
    """Publish what the job of `take_over_stage` has made. Raises ValueError when it has not finished."""
    request = make_request(run, stage)
    record = read_record(request.folder)
    if record is None or not is_finished(request.folder / record.attempt):
        raise ValueError(f"{request.folder}: the stage has no finished attempt; see the job's log")
    publish(request.folder, request.folder / record.attempt, request.publish)
    accept(request.folder)
