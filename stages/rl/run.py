"""Reinforcement learning: load, train in the mode that the config names, publish."""

import gc
from contextlib import ExitStack
from pathlib import Path

import torch.distributed as dist

from checkpoints.commit import remove_torn
from checkpoints.manifest import Result, commit_manifest
from data.job import Job
from data.metrics import metric_shards, read_metrics
from data.tokenizer import tokenizer_digest
from data.warnings import FILE as WARNINGS
from stages.algorithms.load import load_algorithm
from stages.rl import asynchronous, synchronous
from stages.rl.batch_log import batch_files
from stages.rl.config import StageConfig
from stages.rl.parts import Parts, begin
from stages.rl.rates import FOLDER as RATES
from stages.rl.rows import row_files
from stages.rl.state import State
from stages.rl.summary import check_metric_names
from stages.trainer.device import distributed
from stages.trainer.export import weights_digest

LOOPS = {"synchronous": synchronous.train, "colocated": synchronous.train, "asynchronous": asynchronous.train}


def run(config: StageConfig, inputs: dict[str, Result], folder: Path, job: Job) -> None:
    """Train from where `folder` stands to the last step; the result is `folder`/model, trajectories and manifest."""
    algorithm = load_algorithm(config.rl.algorithm)
    check_metric_names(algorithm)
    with distributed(job), ExitStack() as at_end:
        if job.is_first:
            remove_torn(folder)
        dist.barrier()
        parts = begin(config, algorithm, inputs, folder, job, at_end)
        gc.freeze()  # what is loaded stays: collections need not look through it
        at_end.callback(gc.unfreeze)
        state = LOOPS[config.rl.mode](config, algorithm, parts, folder, job, at_end)
        dist.barrier()
        files = parts.learner.export(parts.tokenizer, folder / "model")
        if job.is_first:
            _publish(config, parts, state, folder, files)


def _publish(config: StageConfig, parts: Parts, state: State, folder: Path, model: list[Path]) -> None:
    """Commit the manifest, which makes the folder a result; `model` are the model's files. Rank 0 calls it."""
    step_files = parts.step_files
    commit_manifest(
        folder,
        [
            *model,
            *step_files.files(),
            *batch_files(folder),
            *row_files(folder / RATES),
            *metric_shards(folder),
            folder / WARNINGS,
        ],
        {**_first_and_last(folder), "steps": config.rl.steps, "tokens": state.tokens, "seconds": state.seconds},
        environment_hash=step_files.environment_hash,
        tokenizer_digest=tokenizer_digest(parts.tokenizer),
        weights_digest=weights_digest(folder / "model"),
    )


def _first_and_last(folder: Path) -> dict[str, float]:
    """Reward and success of the first step and of the last."""
    table = read_metrics(folder)
    ends = {"first": 0, "last": -1}
    return {f"{name}_{end}": table[name][row].as_py() for name in ("reward", "success") for end, row in ends.items()}
