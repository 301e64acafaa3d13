"""The arrays of actors of an rl attempt, noted before each is submitted: `ATTEMPT/actors/arrays.json`.

An array is what one submit asks for: tasks of a Slurm job array, or local processes. The first one comes with the run,
the others by `qianka actors add`. All changes happen under the lock of the folder.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from checkpoints.manifest import digest, write_json
from slurm.attempt import LOGS
from slurm.lock import locked
from slurm.record import Executor

FOLDER = "actors"
FILE = "arrays.json"
LOCK = ".lock"


class Array(BaseModel):
    """Actors that were asked for together."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    number: int
    """Counts the arrays of an attempt from 1."""
    actors: int
    """Tasks that play to learn."""
    evaluator: bool
    """Whether one more task scores the policies."""
    executor: Executor
    name: str
    """Unique, so that the array is found even when its id was never noted."""
    host: str
    """Where local processes run."""
    submitted: float
    """Unix time of the intent."""
    start: str = ""
    """The start of the rl job that this array came for, or was found alive by; empty for one that a person added."""
    job_id: str | None = None
    """Of the whole array; `local` for processes; None until the submit has returned."""
    over: bool = False
    """It was ended, or has ended: it is no longer counted on."""

    @property
    def tasks(self) -> int:
        """All of them, of which the evaluator is the last."""
        return self.actors + self.evaluator


class Arrays(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    arrays: list[Array]


def folder_of(attempt: Path) -> Path:
    """What an attempt has of its actors: arrays, logs, and a folder for each."""
    return attempt / FOLDER


def logs_of(attempt: Path) -> Path:
    """Scripts, pickles and logs of the arrays; readable by the owner alone, since a pickle runs what it says."""
    return folder_of(attempt) / LOGS


def folder_of_member(attempt: Path, member: str) -> Path:
    """Where an actor keeps what is its own."""
    return folder_of(attempt) / member


def read_arrays(attempt: Path) -> list[Array]:
    """In the order in which they were asked for."""
    path = folder_of(attempt) / FILE
    return Arrays.model_validate_json(path.read_bytes()).arrays if path.exists() else []


def write_arrays(attempt: Path, arrays: Sequence[Array]) -> None:
    """Commit them, fsynced."""
    write_json(folder_of(attempt) / FILE, Arrays(arrays=list(arrays)).model_dump())


def note(attempt: Path, array: Array) -> None:
    """Commit one of them, new or changed."""
    others = [other for other in read_arrays(attempt) if other.number != array.number]
    write_arrays(attempt, sorted([*others, array], key=lambda each: each.number))


@contextmanager
def arrays_lock(attempt: Path) -> Generator[None]:
    """Hold the attempt's arrays: nobody else decides or submits meanwhile."""
    with locked(folder_of(attempt) / LOCK):
        yield


def name_of(attempt: Path, run: str, number: int) -> str:
    """Of an array: two clones may have runs of one name."""
    return f"{run}-actors-{attempt.name}-{number}-{digest(str(attempt))[:6]}"


def is_rival(attempt: Path, name: str, job_id: str) -> bool:
    """Whether a task belongs to an array that two machines, whose locks do not see each other, have both submitted."""
    noted = next((array.job_id for array in read_arrays(attempt) if array.name == name), None)
    return noted not in (None, "local") and noted != job_id.partition("_")[0]
