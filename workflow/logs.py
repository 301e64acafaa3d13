"""`qianka logs`: the log of a stage's job, and what is added to it, through restarts and new jobs."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

from slurm.attempt import LOGS, log_of
from slurm.record import Record
from slurm.wait import state
from slurm.wait.background import in_background
from slurm.wait.state import Kind
from workflow.jobs import OVER, find_run, find_stage, record_of

TAIL_SECONDS = 0.2
ASK_SECONDS = 3.0
SUCCESSOR_SECONDS = 5.0
"""For another job, when one has ended without a result."""


def show(run: str | None, stage: str | None, follow: bool, rank: int) -> int:
    """Print the log of one rank of a stage's job, and what is added to it until the job ends. Returns the exit code."""
    paths = find_run(run)
    stage = find_stage(paths, stage, ended_too=True)
    folder = paths.stage(stage).resolve()
    record = record_of(folder)
    log = _log(folder, record, rank)
    if not log.exists() and not follow:
        raise ValueError(_no_log(folder, record, rank))
    try:
        for piece in _pieces(folder, rank) if follow else [log.read_bytes()]:
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head`
        sys.stderr.close()
        return 0
    return 0


def _log(folder: Path, record: Record, rank: int) -> Path:
    first = log_of(folder / record.attempt, record.job_id)
    return first.with_name(first.name.replace("_0_", f"_{rank}_"))


def _no_log(folder: Path, record: Record, rank: int) -> str:
    logs = (folder / record.attempt / LOGS).glob(f"{record.job_id}_*_log.out")
    ranks = sorted(int(path.name.split("_")[1]) for path in logs)
    if ranks:
        return f"job {record.job_id} has no log of rank {rank}; its ranks are {ranks[0]} to {ranks[-1]}"
    said = state.query(folder, record).text
    return f"job {record.job_id} has no log yet: it {said}; with --follow the log is shown when it starts"


def _pieces(folder: Path, rank: int) -> Iterator[bytes]:
    """What is and will be in the log of a rank, of one job of the stage after the other, until the last has ended."""
    record, offset = record_of(folder), 0
    ended, asked, answer = 0.0, 0.0, _ask(folder, record)
    while True:
        log = _log(folder, record, rank)
        if log.exists():
            with log.open("rb") as stream:
                stream.seek(offset)
                piece = stream.read()
            offset += len(piece)
            yield piece
        now, clock = record_of(folder), time.monotonic()
        if now.job_id != record.job_id:
            record, offset, ended, answer = now, 0, 0.0, _ask(folder, now)
        elif ended and clock > ended:
            if not log.exists():
                raise ValueError(_no_log(folder, record, rank))
            return
        elif answer.done() and not ended and answer.result() in OVER:
            ended = clock + (0 if answer.result() is Kind.FINISHED else SUCCESSOR_SECONDS)
        elif answer.done() and not ended and clock - asked > ASK_SECONDS:
            asked, answer = clock, _ask(folder, record)
        time.sleep(TAIL_SECONDS)


def _ask(folder: Path, record: Record) -> Future[Kind]:
    """What became of a job, asked aside: Slurm may take long to answer, and the log goes on."""
    return in_background(lambda: state.query(folder, record).kind)
