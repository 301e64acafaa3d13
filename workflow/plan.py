"""What would run, and why: the published results compared with what the config, the inputs and the code are now."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoints.manifest import Manifest, Result
from data.progress import read_progress
from slurm.attempt import JOB, read_job_file
from slurm.fingerprint import code_digest, code_files, code_version
from slurm.query.queue import NoAnswer
from slurm.record import read_record
from slurm.wait import state
from slurm.wait.state import Kind
from workflow.config import INPUTS, RunConfig
from workflow.paths import RunPaths
from workflow.request import file_digests, leaves

SHOWN_FILES = 4
ABSENT = "(absent)"


@dataclass(frozen=True)
class StagePlan:
    """One stage, and why it would run; no reason means that its result is up to date."""

    stage: str
    reasons: tuple[str, ...]


def make_plan(run: RunConfig) -> list[StagePlan]:
    """The stages in order."""
    plans: list[StagePlan] = []
    for stage in INPUTS:
        before = [plan.stage for plan in plans if plan.reasons and plan.stage in INPUTS[stage]]
        plans.append(StagePlan(stage, tuple(_reasons(run, stage, before))))
    return plans


def _reasons(run: RunConfig, stage: str, before: list[str]) -> Iterator[str]:
    paths = RunPaths(run.name)
    published = paths.manifest(stage)
    if not published.exists():
        yield _unfinished(paths.stage(stage))
        return
    try:
        manifest = Result(published).manifest
    except ValueError as error:
        yield f"its result is damaged: {error}"
        return
    attempt = paths.stage(stage) / manifest.attempt
    yield from _config_changes(manifest, run.stage_json(stage))
    yield from _file_changes(attempt, file_digests(run.stage_json(stage)))
    yield from _code_changes(manifest, attempt)
    for name in INPUTS[stage]:
        if name in before:
            yield f"input: {name} runs before it"
        elif Result(paths.manifest(name)).digest != manifest.inputs.get(name):
            yield f"input: the result of {name} is another one now"
    if stage == "evaluate":
        yield from (f"{path} is missing" for path in (paths.report, paths.dashboard) if not path.exists())


def _unfinished(folder: Path) -> str:
    """No result yet; or an attempt is under way."""
    record = read_record(folder) if folder.is_dir() else None
    if record is None or record.accepted:
        return "there is no result yet"
    try:
        found = state.query(folder, record)
    except (ValueError, NoAnswer) as error:
        return f"attempt {record.attempt} is not finished ({error})"
    reading = read_progress(folder / record.attempt)
    far = f" at {reading['done']}/{reading['total']} {reading['unit']}" if reading else ""
    if found.kind is Kind.ENDED:
        return f"attempt {record.attempt} was interrupted{far}"
    return f"attempt {record.attempt}{far}: {found.text}"


def _config_changes(manifest: Manifest, now: Mapping[str, Any]) -> Iterator[str]:
    old, new = dict(leaves(manifest.config)), dict(leaves(now))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key, ABSENT) != new.get(key, ABSENT):
            yield f"config: {'.'.join(key)} {old.get(key, ABSENT)} -> {new.get(key, ABSENT)}"


def _file_changes(attempt: Path, now: Mapping[str, str]) -> Iterator[str]:
    if (attempt / JOB).exists():
        before = read_job_file(attempt).files
        yield from (f"file: {key} has another content" for key in now if now[key] != before.get(key))


def _code_changes(manifest: Manifest, attempt: Path) -> Iterator[str]:
    if manifest.code_digest == code_digest(manifest.stage):
        return
    drift = f"code: {manifest.code_version or 'unversioned'} -> {code_version() or 'unversioned'}"
    if not (attempt / JOB).exists():
        yield drift
        return
    old, new = read_job_file(attempt).code, code_files(manifest.stage)
    changed = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    more = f" and {len(changed) - SHOWN_FILES} more" if len(changed) > SHOWN_FILES else ""
    yield f"{drift} in {', '.join(changed[:SHOWN_FILES])}{more}"


def stale(run: RunConfig) -> dict[str, tuple[str, ...]]:
    """Stages whose result is there and out of date, and why."""
    there = [plan for plan in make_plan(run) if RunPaths(run.name).manifest(plan.stage).exists()]
    return {plan.stage: plan.reasons for plan in there if plan.reasons}
