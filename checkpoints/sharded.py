"""Checkpoints of a distributed run: torch.distributed.checkpoint files that any world size can load.

`folder`/step-000100 exists when, and only when, all of it is on disk. All functions are called by all ranks.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from checkpoints.commit import ASIDE, sync

STATE = "state.json"
"""What is not a tensor: the step, the caller's state, and name and size of the other files."""


def save(folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any], keep: int) -> None:
    """Commit `tensors` (DTensors, or tensors that are equal on all ranks) and the JSON value `state` of `step`.

    Every rank writes its own files, rank 0 alone writes the rest and renames. The newest `keep` checkpoints stay. A
    step that is there already stays as it is: the same step of the same run has the same content.
    """
    path = folder / f"step-{step:06d}"
    aside = path.with_name(path.name + ASIDE)
    if _from_first(path.exists() if _is_first() else None):
        return
    if _is_first():
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
    dist.barrier()
    try:
        save_tensors(tensors, storage_writer=FileSystemWriter(aside))
    except CheckpointException as error:
        raise _first_failure(error, aside) from error
    if _is_first():
        files = {file.name: file.stat().st_size for file in sorted(aside.iterdir())}
        (aside / STATE).write_text(json.dumps({"step": step, "state": state, "files": files}, indent=1))
        sync(aside / STATE)
        sync(aside)
        aside.replace(path)
        sync(folder)
        _retain(folder, keep)
    dist.barrier()


def latest(folder: Path) -> Path | None:
    """The newest committed checkpoint in `folder`, None when there is none yet. Rank 0 looks, so all agree."""
    name = _from_first(_committed(folder)[-1].name if _is_first() and _committed(folder) else None)
    return None if name is None else folder / name


def load(path: Path, tensors: dict[str, Tensor]) -> tuple[int, dict[str, Any]]:
    """Fill `tensors` in place from the checkpoint at `path`; return its step and state.

    Raises ValueError that names the file or the tensor when the checkpoint is not whole, or is of another model.
    """
    record = _read_state(path)
    reader = FileSystemReader(path)
    saved = reader.read_metadata().state_dict_metadata
    for name in sorted(saved.keys() ^ tensors.keys()):
        where = "is not in the checkpoint" if name in tensors else "of the checkpoint has no place in this run"
        raise ValueError(f"{path}: {name} {where}; it was made by another config: use a new run folder")
    for name, tensor in tensors.items():
        size = getattr(saved[name], "size", None)
        if size != tensor.shape:
            raise ValueError(f"{path}: {name} has shape {tuple(size or ())}, this run needs {tuple(tensor.shape)}")
    try:
        load_tensors(tensors, storage_reader=reader)
    except CheckpointException as error:
        raise _first_failure(error, path) from error
    return record["step"], record["state"]


def _read_state(path: Path) -> dict[str, Any]:
    if not (path / STATE).exists():
        raise ValueError(f"{path / STATE}: missing; remove the folder to resume from the checkpoint before it")
    record = json.loads((path / STATE).read_text())
    for name, size in record["files"].items():
        found = path / name
        if not found.exists() or found.stat().st_size != size:
            raise ValueError(
                f"{found}: missing or not of {size} bytes; remove {path} to resume from the checkpoint before it"
            )
    return record


def _committed(folder: Path) -> list[Path]:
    found = (path for path in folder.glob("step-*") if not path.name.endswith(ASIDE))
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))  # step-1000000 is after step-999999


def _retain(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep`. Renamed first, so that a half-removed one does not look whole."""
    for path in _committed(folder)[:-keep]:
        aside = path.with_name(path.name + ASIDE)
        path.replace(aside)
        shutil.rmtree(aside)


def _is_first() -> bool:
    return dist.get_rank() == 0


def _from_first(value: Any) -> Any:
    """Rank 0's `value` on all ranks: what lies in a shared folder may look different on each node for a while."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _first_failure(error: CheckpointException, path: Path) -> OSError:
    rank, failure = next(iter(error.failures.items()))
    return OSError(f"{path}: rank {rank}: {failure[0]}")
