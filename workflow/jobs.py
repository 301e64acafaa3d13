"""`qianka attach` and `qianka cancel`: what a person does with jobs that are there already.

They follow the record of a stage, so they work whatever became of the config and the code since, submit nothing, and
need no lock on the run.
"""

import difflib
import time
from pathlib import Path

from data.progress import read_progress
from slurm.actors.ask import end, end_by_hand, withdrawn
from slurm.attempt import publish
from slurm.claim import Attached, find_job, see_out, withdraw
from slurm.record import Record, is_finished, read_record
from slurm.wait import state
from slurm.wait.attach import Waiter, failure, interrupts_noted
from slurm.wait.display import Display
from slurm.wait.judge import End
from slurm.wait.state import Kind
from workflow.config import INPUTS
from workflow.paths import RUNS, RunPaths, known_runs
from workflow.request import shown
from workflow.stage import EXIT_CODES, found

SUCCESSOR_SECONDS = 20.0
"""For the one who waits for a job to submit another one in its place."""
OVER = (Kind.ENDED, Kind.FINISHED)


def attach(run: str | None, stage: str | None) -> int:
    """Wait for a stage's job as the command that submitted it does. Returns the exit code."""
    paths = find_run(run)
    stage = find_stage(paths, stage)
    folder = paths.stage(stage).resolve()
    with interrupts_noted() as interrupts, Display(stage, None) as display:
        record = record_of(folder)
        while True:
            attached = Attached(record, folder / record.attempt, "re-attached")
            display.say(found(attached))
            waiter = Waiter(attached, display, interrupts)
            ended = waiter.wait()
            if ended in (End.FINISHED, End.FAILED, End.CANCELLED):
                withdrawn(attached.folder)
            if ended is End.FINISHED:
                publish(folder, attached.folder, shown(paths, stage))
                display.say(f"published {record.attempt}")
            elif ended is End.FAILED:
                display.say(failure(attached, waiter.text))
            following = _successor(folder, record) if ended is End.AGAIN else None
            if following is None:
                break
            record = following
        if ended is End.AGAIN:
            display.say("the job is over, and nobody has submitted another one; `qianka run` resumes it")
        return EXIT_CODES[ended]


def cancel(run: str | None, stage: str | None) -> int:
    """End the jobs of a run, or of one stage, and say what they leave. Returns the exit code."""
    paths = find_run(run)
    stages = [find_stage(paths, stage)] if stage else _under_way(paths)
    if not stages:
        print(f"nothing of run {paths.name} is under way")
    for name in stages:
        folder = paths.stage(name).resolve()
        job_id = withdraw(folder)
        attempt = folder / record_of(folder).attempt
        ended = [*end_by_hand(attempt), *end(attempt)]
        if ended:
            print(f"{name}: ended its actors ({', '.join(ended)})", flush=True)
        if job_id is None:
            print(f"{name}: no job is under way")
            continue
        print(f"{name}: ending job {job_id}", flush=True)
        record = record_of(folder)
        see_out(folder, record)
        print(f"{name}: job {job_id} has ended; {left_behind(folder / record.attempt)}")
    return 0


def find_run(name: str | None) -> RunPaths:
    """The run of that name, by default the last used one. Raises ValueError with the near names."""
    known = known_runs()
    if not known:
        raise ValueError(f"no runs in {RUNS.resolve()}; go to the folder that holds runs/")
    if name is None:
        return RunPaths(known[0])
    if name not in known:
        stages = " (a stage's name comes after the run's)" if name in INPUTS else ""
        raise ValueError(f"there is no run {name!r} in {RUNS.resolve()}{stages}; {_near(name, known)}")
    return RunPaths(name)


def find_stage(paths: RunPaths, name: str | None, ended_too: bool = False) -> str:
    """The stage of that name, which has a job; by default the one that is under way, or the last one that was."""
    if name is not None and name not in INPUTS:
        raise ValueError(f"there is no stage {name!r}; {_near(name, list(INPUTS))}")
    started = [stage for stage in INPUTS if _has_record(paths, stage)]
    if name is not None:
        if name not in started:
            raise ValueError(f"the stage {name} of run {paths.name} was never started; {_listed(started)} were")
        return name
    active = _under_way(paths)
    if active:
        return active[0]
    if ended_too and started:
        return max(started, key=lambda stage: record_of(paths.stage(stage)).submitted)
    raise ValueError(f"nothing of run {paths.name} is under way; `qianka status` shows where it stands")


def left_behind(attempt: Path) -> str:
    """What an attempt has committed, as far as its files say so, and how to go on."""
    reading, steps = read_progress(attempt), _checkpoints(attempt)
    if is_finished(attempt):
        return "it had finished before, and the same command publishes its result"
    if reading is None:
        return "it had done nothing yet; the same command starts it again"
    done = max(int(reading["done"]), steps[-1] if steps else 0)  # progress is not written at every step
    said = f"it had done {done} of {reading['total']} {reading['unit']}"
    return f"{said}{f', and committed {steps[-1]}' if steps else ''}; the same command resumes it"


def _checkpoints(attempt: Path) -> list[int]:
    names = [path.name.removeprefix("step-") for path in (attempt / "checkpoints").glob("step-*")]
    return sorted(int(name) for name in names if name.isdigit())


def _has_record(paths: RunPaths, stage: str) -> bool:
    return paths.stage(stage).is_dir() and read_record(paths.stage(stage)) is not None


def record_of(folder: Path) -> Record:
    """The record of a stage that has one, with the id of its job even when nobody has noted it."""
    record = read_record(folder)
    assert record is not None, "the stage was found by its record"
    return find_job(folder / record.attempt, record)


def _under_way(paths: RunPaths) -> list[str]:
    """Stages whose job has not ended, as far as anybody knows, or whose result nobody has published yet."""
    stages: list[str] = []
    for stage in INPUTS:
        folder = paths.stage(stage).resolve()
        if _has_record(paths, stage):
            record = record_of(folder)
            kind = Kind.ENDED if record.accepted else state.query(folder, record).kind
            if kind not in OVER or (kind is Kind.FINISHED and not paths.manifest(stage).exists()):
                stages.append(stage)
    return stages


def _successor(folder: Path, record: Record) -> Record | None:
    """The record of the next job of the stage, if somebody submits one."""
    end = time.monotonic() + SUCCESSOR_SECONDS
    while time.monotonic() < end:
        now = read_record(folder)
        if now and now.job_id and now.job_id != record.job_id:
            return now
        time.sleep(0.2)
    return None


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {_listed(known)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
