"""Nodes that a run avoids for a while, because a job of it failed there: one file in the run folder."""

import time
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from checkpoints.manifest import write_json
from slurm.lock import locked

FILE = "excluded.json"


class Exclusion(BaseModel):
    """Why a node is avoided, and until when (Unix time)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    reason: str
    until: float


class _Exclusions(RootModel[dict[str, Exclusion]]):
    """By node."""


def excluded(folder: Path) -> dict[str, Exclusion]:
    """The nodes that the run in `folder` avoids now. ValueError, with the path, when the file is damaged."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        found = _Exclusions.model_validate_json(path.read_bytes()).root
    except ValidationError as error:
        raise ValueError(f"{path} is damaged; remove it, and no node is avoided: {error}") from error
    return {node: entry for node, entry in sorted(found.items()) if entry.until > time.time()}


def pardon(folder: Path, nodes: Iterable[str]) -> None:
    """Avoid `nodes` no longer."""
    with locked(folder / f".{FILE}.lock"):
        left = {node: entry.model_dump() for node, entry in excluded(folder).items() if node not in set(nodes)}
        write_json(folder / FILE, left)


def exclude(folder: Path, nodes: Iterable[str], reason: str, hours: float) -> None:
    """Avoid `nodes` from now on. What has expired is forgotten."""
    with locked(folder / f".{FILE}.lock"):
        until = time.time() + 3600 * hours
        entries = excluded(folder) | {node: Exclusion(reason=reason, until=until) for node in nodes}
        write_json(folder / FILE, {node: entry.model_dump() for node, entry in entries.items()})
