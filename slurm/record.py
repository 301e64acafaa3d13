"""The record of a stage: which attempt is meant to run, and as which job. Written before the submit.

`<stage folder>/record.json` says what was intended, so that whoever comes after a kill finds the job instead of
starting a second one. All changes happen under the lock of the stage folder.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from checkpoints.manifest import NAME, write_json
from slurm.lock import locked

FILE = "record.json"
LOCK = ".record.lock"

Executor = Literal["local", "slurm"]


class Record(BaseModel):
    """One attempt at a stage and the job that makes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    stage: str
    fingerprint: str
    number: int
    """Counts the attempts at one fingerprint from 1; each has a folder of its own."""
    executor: Executor
    job_name: str
    """Unique, so that the job is found even when its id was never noted."""
    host: str
    """Where a local job runs."""
    submitted: float
    """Unix time of the intent."""
    job_id: str | None = None
    """None until the submit has returned."""
    accepted: bool = False
    """The caller has the result. The next call for the stage is then a wish for a new attempt."""

    @property
    def attempt(self) -> str:
        """Name of the attempt's folder in the stage folder."""
        return f"{self.fingerprint}-{self.number}"


def read_record(folder: Path) -> Record | None:
    """The record in a stage folder, or None when nothing was ever submitted there."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return Record.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path}: not a record of this version of Qianka; move {folder} away") from error


def write_record(folder: Path, record: Record) -> None:
    """Commit the record, fsynced."""
    write_json(folder / FILE, record.model_dump())


@contextmanager
def record_lock(folder: Path) -> Generator[None]:
    """Hold the stage's record: nobody else decides or submits meanwhile."""
    with locked(folder / LOCK):
        yield


def attempts(folder: Path, fingerprint: str) -> list[int]:
    """Numbers of the attempts at a fingerprint that have a folder, in order."""
    found = [path.name.rpartition("-")[2] for path in folder.glob(f"{fingerprint}-*") if path.is_dir()]
    return sorted(int(number) for number in found if number.isdigit())


def is_finished(attempt: Path) -> bool:
    """Whether an attempt has committed its manifest."""
    return (attempt / NAME).exists()


def accept(folder: Path) -> None:
    """Note that the caller has the stage's result, if it is published."""
    with record_lock(folder):
        record = read_record(folder)
        if record and not record.accepted and (folder / NAME).exists() and is_finished(folder / record.attempt):
            write_record(folder, record.model_copy(update={"accepted": True}))
