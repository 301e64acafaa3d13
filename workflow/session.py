"""The beginning and the end of work on a run folder."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from checkpoints.manifest import write_json
from slurm.lock import hold, let_go
from slurm.query.queue import NoAnswer, choose_executor
from slurm.record import accept, read_record
from slurm.wait.callers import watch_me
from slurm.wait.state import Kind, query
from workflow.config import INPUTS, RunConfig
from workflow.paths import RunPaths
from workflow.plan import make_plan
from workflow.preflight import check_cluster, check_config, check_folder

LOCKED = "QIANKA_LOCKED"
"""Variable with the run folder that a caller of this process holds."""
CHECKED = "QIANKA_CHECKED"
"""Variable with the run folder whose jobs a caller of this process has checked."""
WAIT_SECONDS = 10.0
"""For a process that was just orphaned to notice it, and to let go of the run."""


def begin(run: RunConfig, stages: Sequence[str] | None = None) -> None:
    """Check what can be checked before any node is asked for, lock the run, and write its resolved config.

    Slurm is asked, once for a command and all that it calls, about the jobs of `stages`: by default of those that would
    be submitted. The lock is held until this process ends, however it ends; nothing has to be unlocked by hand. A
    process that was called by the one that holds the run only checks. Raises ValueError; also when another process has
    finished stages since this one began, since who plans to run them would make them a second time.
    """
    paths = RunPaths(run.name)
    before = _taken(run)
    check_config(run)
    check_owner(run)
    ours = os.fspath(paths.folder.resolve())
    if os.environ.get(CHECKED) != ours:
        check_cluster(run, to_submit(run, stages))
        os.environ[CHECKED] = ours
    check_folder(paths.folder)
    if os.environ.get(LOCKED) != ours:
        holder = hold(paths.lock, WAIT_SECONDS)
        if holder is not None:
            raise ValueError(
                f"{paths.folder}: {holder} works on this run; wait for it or stop it, or give this run another name "
                f"(name={run.name}-2)"
            )
        if _taken(run) != before:
            let_go(paths.lock)
            raise ValueError(
                f"{paths.folder}: another process worked on this run until just now, and has finished stages that were "
                "not done when this one began; run the same command again"
            )
        os.environ[LOCKED] = ours
        write_json(paths.config, run.model_dump(mode="json"))
    watch_me()


def _taken(run: RunConfig) -> list[str]:
    """The attempts whose results somebody has."""
    folders = [folder for stage in INPUTS if (folder := RunPaths(run.name).stage(stage)).is_dir()]
    return [record.attempt for folder in folders if (record := read_record(folder)) and record.accepted]


def to_submit(run: RunConfig, stages: Sequence[str] | None = None) -> list[str]:
    """Those of `stages`, by default of those that would run, that have no job yet."""
    if choose_executor(run.slurm) != "slurm":
        return []
    wanted = [plan.stage for plan in make_plan(run) if plan.reasons] if stages is None else stages
    missing = [stage for stage in wanted if not _has_job(RunPaths(run.name).stage(stage))]
    return [*missing, *(["actors"] if "rl" in missing and run.rl.mode == "asynchronous" else [])]


def _has_job(folder: Path) -> bool:
    record = read_record(folder) if folder.is_dir() else None
    if record is None or record.accepted:
        return False
    try:
        return query(folder, record).kind is not Kind.ENDED
    except NoAnswer:
        return True


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
