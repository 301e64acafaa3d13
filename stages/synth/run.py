"""The synth stage: tasks from a rule engine or the user's file, cleaned, split, and written as Parquet shards.

Every rank makes its blocks (`blocks.py`) in worker processes (`pool.py`); rank 0 then turns all blocks into splits
(`assemble.py`). Ranks meet through files alone, so the stage needs no torch. The shards have the same bytes for any
number of ranks, workers and restarts.
"""

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from checkpoints.commit import commit
from checkpoints.manifest import NAME, Result, commit_manifest, digest
from data.budget import Budget
from data.job import Job, Stopped
from data.progress import FILE, Progress
from data.shards import read_provenance, write_shard
from data.user_rows import check_user_file
from stages.environments.hash import environment_hash
from stages.environments.registry import make
from stages.environments.self_test import self_test
from stages.synth.assemble import assemble
from stages.synth.blocks import FOLDER, Block, make_block, plan_blocks
from stages.synth.config import StageConfig
from stages.synth.pool import compute, stop_if_asked

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 600.0
"""A rank that waits gives up when it has seen no sign of life for so long."""


def run(config: StageConfig, inputs: dict[str, Result], folder: Path, job: Job) -> None:
    """Write the splits and the manifest to `folder`. Every rank calls it, and returns when the manifest is there."""
    assert not inputs, "synth is the first stage"
    started = time.monotonic()
    manifest = folder / NAME
    if not manifest.exists():
        environment = make(config.environment)
        for path in environment.data_files():
            check_user_file(path)
        self_test(environment)
        provenance = describe(config)
        blocks = plan_blocks(config)
        write_blocks(config, blocks, folder, job, provenance)
        if job.is_first:
            wait_for_blocks(blocks, folder, job, provenance)
            paths, counts = assemble(config, blocks, folder, job, provenance)
            # Of the start that finishes: what an interrupted one had spent before is not known.
            metrics = {**counts.metrics(), "seconds": time.monotonic() - started}
            commit_manifest(folder, paths, metrics, environment_hash=provenance["environment_hash"])
        else:
            wait_until(manifest.exists, folder, job, "rank 0 to write the shards")
    if job.is_first:
        shutil.rmtree(folder / FOLDER, ignore_errors=True)


def describe(config: StageConfig) -> dict[str, str]:
    """What made a shard, for its metadata: nothing that does not change its rows, such as the number of workers."""
    free = {"synth": {"workers", "block_tasks"}, "environment": {"path", "harder_path"}}
    return {
        "seed": str(config.seed),
        "environment": config.environment.name,
        "environment_hash": environment_hash(config.environment),
        "config_digest": digest(config.model_dump(mode="json", exclude=free)),
    }


def write_blocks(config: StageConfig, blocks: list[Block], folder: Path, job: Job, provenance: dict[str, str]) -> None:
    """Commit those of this rank's blocks that are not there yet."""
    mine = [block for block in blocks if block.index % job.world_size == job.rank]
    missing = [block for block in mine if not is_written(block, folder, provenance)]
    there = sum(block.tasks for block in mine) - sum(block.tasks for block in missing)
    progress = Progress(folder, sum(block.tasks for block in mine), "tasks", done=there, first=there)
    budget = Budget(job, folder, "synth")
    made = compute(partial(make_block, config), missing, config.synth.workers, job)
    for block, table in budget.measured(made, lambda item: f"block {item[0].index}"):
        with budget.save(block.index), commit(block.path(folder)) as aside:
            write_shard(aside, table, provenance)
        if job.is_first:
            progress.update(progress.done + block.tasks, "drawing and grading")
        if budget.is_spent():  # on rank 0; the others end with it, and are not waited for
            raise Stopped(f"synth: {budget.why()}, stopped between two blocks; the finished ones are kept")


def is_written(block: Block, folder: Path, provenance: dict[str, str]) -> bool:
    """Whether the block is there and was made by this code from these files: a user may have changed them meanwhile."""
    path = block.path(folder)
    return path.exists() and read_provenance(path) == provenance


def wait_for_blocks(blocks: list[Block], folder: Path, job: Job, provenance: dict[str, str]) -> None:
    """Wait for the blocks of the other ranks."""
    waiting = list(blocks)

    def all_written() -> bool:
        while waiting and is_written(waiting[-1], folder, provenance):
            waiting.pop()
        return not waiting

    wait_until(all_written, folder, job, "the other ranks to write their blocks")


def wait_until(condition: Callable[[], bool], folder: Path, job: Job, what: str) -> None:
    """Poll until the condition holds. TimeoutError when blocks and progress stand still, Stopped when asked to stop."""
    seen, since = None, time.monotonic()
    while not condition():
        stop_if_asked(job)
        signs = [path.stat().st_mtime_ns for path in (folder / FOLDER, folder / FILE) if path.exists()]
        if signs != seen:
            seen, since = signs, time.monotonic()
            job.beat(f"waiting for {what}")
        if time.monotonic() - since > PATIENCE_SECONDS:
            raise TimeoutError(
                f"rank {job.rank} on {job.node} has waited {PATIENCE_SECONDS:.0f} s for {what}, and nothing moved in "
                f"{folder}; another rank may be gone: see its log"
            )
        time.sleep(POLL_SECONDS)
