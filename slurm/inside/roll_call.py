"""Who is there: each rank keeps a small file in `<attempt>/roll/<start>/`, from before it imports torch.

It says where the rank runs and what it did last, and is written again every `PERIOD_SECONDS`, changed or not, so a rank
that is frozen, or whose node is, falls silent. For 1024 ranks that is 100 writes of 200 bytes a second over the whole
file system, where one metadata server of Lustre does tens of thousands. It is written in place: a rename would cost
twice as much, and a reader that sees half of a file reads it again.
"""

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from slurm.inside.place import Place

FOLDER = "roll"
PERIOD_SECONDS = 10.0


class Entry(BaseModel):
    """One rank of one start. Times are Unix times of its own node."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rank: int
    node: str
    pid: int
    job_id: str
    began: float
    event: str
    """What it did last."""
    at: float
    """When it did so."""
    time: float
    """When the rank's watchdog wrote this."""
    ended: bool = False
    """It is through, well or not."""


@dataclass(frozen=True)
class Missing:
    """Ranks that have not started, and the nodes on which fewer ranks are than there should be."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    """Nothing where nobody says which nodes the job has."""

    def __str__(self) -> str:
        ranks = _listed("rank", self.ranks)
        return f"{ranks} on {_listed('node', self.nodes)}" if self.nodes else ranks


def folder_of(attempt: Path, place: Place) -> Path:
    """Where the ranks of this start sign."""
    return attempt / FOLDER / place.start


def open_roll(attempt: Path, place: Place) -> Path:
    """The folder of this start; rank 0 removes those of earlier ones, whose ranks, if any still run, then end."""
    mine = folder_of(attempt, place)
    mine.mkdir(parents=True, exist_ok=True)
    if place.rank == 0:
        for other in sorted(mine.parent.iterdir()):  # first what an earlier removal has left under a name of ours
            if other != mine:
                _remove(other)
    return mine


def _remove(start: Path) -> None:
    """Remove the folder of a start.

    Renamed first, so that nobody can sign there any more: a file that is new while the folder is emptied would keep it,
    and with it the ranks of that start.
    """
    gone = start
    if not start.name.startswith("."):
        with suppress(OSError):
            gone = start.rename(start.with_name(f".{start.name}"))
    shutil.rmtree(gone, ignore_errors=True)


def sign(roll: Path, entry: Entry) -> None:
    """Write the file of one rank. FileNotFoundError when a later start has removed the folder.

    What was there is written over, which works on a full disk too.
    """
    content = entry.model_dump_json().encode()
    file = os.open(roll / f"{entry.rank}.json", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.write(file, content)
        os.ftruncate(file, len(content))
    finally:
        os.close(file)


def read_roll(roll: Path) -> dict[int, Entry]:
    """The ranks that have signed."""
    entries = [_read(path) for path in roll.glob("*.json")]
    return {entry.rank: entry for entry in entries if entry}


def ranks_in(roll: Path) -> set[int]:
    """The ranks that have signed, from the names of the files: one look for all of them."""
    return {int(path.stem) for path in roll.glob("*.json")}


def has_begun(attempt: Path, job_id: str, restarts: int | None) -> bool:
    """Whether a rank of a Slurm job has begun, in the start after so many restarts; None: in any."""
    return any(_signatures(attempt, job_id, restarts))


def nodes_begun(attempt: Path, job_id: str, restarts: int | None) -> set[str]:
    """The nodes on which one has."""
    return {entry.node for entry in map(_read, _signatures(attempt, job_id, restarts)) if entry}


def last_begun(attempt: Path, job_id: str) -> int:
    """After how many restarts of a Slurm job a rank has begun last; -1 when none ever has."""
    return max((int(path.parent.name.split("-")[-1]) for path in _signatures(attempt, job_id, None)), default=-1)


def _signatures(attempt: Path, job_id: str, restarts: int | None) -> Iterator[Path]:
    start = "*" if restarts is None else restarts
    return (attempt / FOLDER).glob(f"slurm-{job_id}-*-{start}/*.json")


def missing(place: Place, present: dict[int, Entry]) -> Missing:
    """Who is not `present`. A node is known by its number of ranks, so how ranks were dealt out does not matter."""
    ranks = tuple(rank for rank in range(place.world_size) if rank not in present)
    counts = Counter(entry.node for entry in present.values())
    return Missing(ranks, tuple(node for node, tasks in place.tasks.items() if counts[node] < tasks))


def stuck(before: Mapping[int, Entry], after: Mapping[int, Entry]) -> tuple[Entry, bool]:
    """Of ranks that wait for each other, the one that the others wait for, and whether it is frozen or gone.

    That is one that has not signed between two looks, and else the one whose last event is oldest. No two clocks are
    compared, since those of nodes may differ, and Lustre takes even the times of files from them.
    """
    waiting = [entry for entry in after.values() if not entry.ended]
    silent = [entry for entry in waiting if before.get(entry.rank) == entry]
    return max(silent or waiting, key=lambda entry: entry.time - entry.at), bool(silent)


def _read(path: Path) -> Entry | None:
    """None when the file is gone or cannot be read, or is still half-written after a moment."""
    for _ in range(5):
        try:
            return Entry.model_validate_json(path.read_bytes())
        except OSError:
            return None
        except ValidationError:
            time.sleep(0.02)
    return None


def _listed(word: str, items: Sequence[object]) -> str:
    names = ", ".join(map(str, items[:8])) + (f" and {len(items) - 8} more" if len(items) > 8 else "")
    return f"{word}{'s' if len(items) > 1 else ''} {names}"
