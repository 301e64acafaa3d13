"""From the run's config to what `slurm` is asked for, and what a stage's result depends on."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checkpoints.manifest import digest, file_digest
from slurm.attempt import Request
from slurm.fingerprint import code_digest
from stages.algorithms.spec import operator_files, read_spec
from stages.environments.rewards import own_file
from workflow.config import INPUTS, RunConfig
from workflow.layers import PATHS, Key
from workflow.paths import RunPaths


def make_request(run: RunConfig, stage: str, cpus: int | None = None) -> Request:
    """The request for one stage of a run; `cpus` is how many cores of this machine a local job may use."""
    paths = RunPaths(run.name)
    return Request(
        run=run.name,
        stage=stage,
        run_folder=paths.folder.resolve(),
        folder=paths.stage(stage).resolve(),
        config=run.stage_json(stage),
        inputs={name: paths.manifest(name).resolve() for name in INPUTS[stage]},
        files=file_digests(run.stage_json(stage)),
        slurm=run.slurm,
        cpus=cpus or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpus or os.cpu_count() or 1,
        publish=shown(paths, stage),
    )


def shown(paths: RunPaths, stage: str) -> dict[str, Path]:
    """Files of a stage's result that are copied to where a person looks for them: name, place."""
    places = {"report.json": paths.report, "dashboard.html": paths.dashboard} if stage == "evaluate" else {}
    return {name: place.resolve() for name, place in places.items()}


def triggers(run: RunConfig, stage: str) -> list[str]:
    """What makes Snakemake run a stage again besides its inputs, as `key=value`, so that its reason names the key.

    Nothing here reads the result or the scheduler, and resources are no part of it.
    """
    config = run.stage_json(stage)
    values = {".".join(key): value for key, value in leaves(config)}
    values |= {f"content of {key}": value for key, value in file_digests(config).items()}
    values["code"] = code_digest(stage)
    return [f"{key}={json.dumps(value)}" for key, value in sorted(values.items())]


def leaves(values: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every value of a config tree that is no section, with its key."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


def file_digests(config: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the user's own files and folders that a stage's config names, by key; absent ones are left out."""
    found: dict[str, str] = {}
    for section, key in PATHS:
        value = config.get(section, {}).get(key, "")
        if value and Path(value).exists():
            path = Path(value)
            found[f"{section}.{key}"] = _model_digest(path) if path.is_dir() else file_digest(path)
    if "rl.algorithm" in found:
        algorithm = Path(config["rl"]["algorithm"])
        for file in operator_files(algorithm, read_spec(algorithm)):
            found[f"rl.algorithm {file}"] = file_digest(file)
    for reward in config.get("rl", {}).get("rewards", ()):
        own = own_file(reward["term"])
        if own is not None and Path(own[0]).exists():
            found[f"rl.rewards {own[0]}"] = file_digest(Path(own[0]))
    return found


def _model_digest(folder: Path) -> str:
    """Of a model folder: its small files, and size and time of the weights, which would take minutes to read."""
    parts = {
        path.name: file_digest(path) if path.suffix == ".json" else f"{path.stat().st_size} {path.stat().st_mtime_ns}"
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
    return digest(parts)
