"""One stage of a run: make sure that its job exists, wait for it, publish its result."""

import os
from pathlib import Path

from slurm.attach import WATCHED, End, Waiter, failure, interrupts_noted
from slurm.attempt import Request, publish
from slurm.claim import Attached, submit_or_attach, take_over
from slurm.display import Display
from slurm.record import accept, is_finished, read_record
from workflow.config import RunConfig
from workflow.paths import RunPaths
from workflow.request import make_request
from workflow.session import begin

MAX_JOBS = 50
"""New jobs for one attempt after the stage stopped in good order and Slurm could not requeue it."""
EXIT_CODES = {End.FINISHED: 0, End.FAILED: 1, End.STOPPED: 1, End.DETACHED: 75, End.CANCELLED: 130}


def run_stage(run: RunConfig, stage: str, cores: int | None, log: Path | None) -> int:
    """Submit or attach, wait, publish. Returns the exit code."""
    called = bool(os.environ.get(WATCHED))
    begin(run)
    request = make_request(run, stage, cores)
    with interrupts_noted() as interrupts, Display(stage, log) as display:
        end = _wait(request, display, interrupts)
        if end is not End.FINISHED:
            return EXIT_CODES[end]
        if not called:
            accept(request.folder)
    return 0


def _wait(request: Request, display: Display, interrupts: list[int]) -> End:
    """One job after the other, as long as each stops in good order and leaves the rest to the next."""
    for _ in range(MAX_JOBS):
        attached = submit_or_attach(request)
        accept_inputs(request)
        display.say(_found(attached))
        waiter = Waiter(attached, display, interrupts)
        end = waiter.wait()
        if end is End.FINISHED:
            publish(request, attached.folder)
            display.say(f"published {attached.folder.name}")
        elif end is End.FAILED:
            display.say(failure(attached, waiter.text))
        elif end is End.STOPPED and attached.record.executor == "local":
            display.say("stopped after committing its progress; the same command resumes it")
        if end is not End.STOPPED or attached.record.executor == "local":
            return end
    display.say(f"stopped {MAX_JOBS} times without finishing; see why before you run it again")
    return End.STOPPED


def _found(attached: Attached) -> str:
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
        begin(run)  # a job that was requeued has the run already, whoever waits for it by now
    return take_over(make_request(run, stage, cores), job_id).folder


def publish_stage(run: RunConfig, stage: str) -> None:
    """Publish what the job of `take_over_stage` has made. Raises ValueError when it has not finished."""
    request = make_request(run, stage)
    record = read_record(request.folder)
    if record is None or not is_finished(request.folder / record.attempt):
        raise ValueError(f"{request.folder}: the stage has no finished attempt; see the job's log")
    publish(request, request.folder / record.attempt)
    accept(request.folder)
