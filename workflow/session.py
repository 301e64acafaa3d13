"""The beginning and the end of work on a run folder."""

import json
import os

from checkpoints.manifest import write_json
from slurm.callers import watch_me
from slurm.lock import hold, let_go
from slurm.record import accept
from workflow.config import INPUTS, RunConfig
from workflow.paths import RunPaths
from workflow.preflight import check_config, check_folder

LOCKED = "QIANKA_LOCKED"
"""Variable with the run folder that a caller of this process holds."""
WAIT_SECONDS = 10.0
"""For a process that was just orphaned to notice it, and to let go of the run."""


def begin(run: RunConfig) -> None:
    """Check what can be checked before any node is asked for, lock the run, and write its resolved config.

    The lock is held until this process ends, however it ends; nothing has to be unlocked by hand. A process that was
    called by the one that holds the run only checks. Raises ValueError.
    """
    paths = RunPaths(run.name)
    check_config(run)
    check_owner(run)
    check_folder(paths.folder)
    ours = os.fspath(paths.folder.resolve())
    if os.environ.get(LOCKED) != ours:
        holder = hold(paths.lock, WAIT_SECONDS)
        if holder is not None:
            raise ValueError(
                f"{paths.folder}: {holder} works on this run; wait for it or stop it, or give this run another name "
                f"(name={run.name}-2)"
            )
        os.environ[LOCKED] = ours
        write_json(paths.config, run.model_dump(mode="json"))
    watch_me()


def check_owner(run: RunConfig) -> None:
    """Raise ValueError when the run folder was made by another config file."""
    paths = RunPaths(run.name)
    if not paths.config.exists():
        return
    try:
        owner = json.loads(paths.config.read_text())["source"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{paths.config}: damaged, so nobody knows which config made this run; remove it if it was {run.source}"
        ) from error
    if owner != run.source:
        raise ValueError(
            f"{paths.folder} was made by {owner}, and this is {run.source}. Give this run a name of its own "
            f"(name={run.name}-2), or go on with the other one ({paths.config}), or remove {paths.folder}"
        )


def accept_published(run: RunConfig, stages: tuple[str, ...] = tuple(INPUTS)) -> None:
    """Note that whoever asked for these stages has their results: to ask again is to want new ones."""
    for stage in stages:
        folder = RunPaths(run.name).stage(stage)
        if folder.is_dir():
            accept(folder)


def release(run: RunConfig) -> None:
    """Let go of the run, so that a child of this process can take it."""
    let_go(RunPaths(run.name).lock)
    os.environ.pop(LOCKED, None)
