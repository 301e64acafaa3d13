"""From blocks to splits: drop duplicates, divide by the hash of the prompt, and write shards. Rank 0 alone does it."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from checkpoints.commit import commit
from data.dedupe import NearDuplicates, first_occurrences
from data.job import Job
from data.progress import Progress
from data.rows import SCHEMA, id_keys
from data.shards import write_shard
from data.split import SPLITS, assign_splits
from stages.environments.base import BaseEnvironment
from stages.environments.registry import make
from stages.synth.blocks import BLOCK_SCHEMA, Block, read_block, read_signatures
from stages.synth.config import StageConfig, SynthConfig
from stages.synth.pool import stop_if_asked

HARDER = "harder"


@dataclass
class Counts:
    """What became of the tasks; the harder ones are counted apart from the rest."""

    tasks: int = 0
    harder_tasks: int = 0
    exact_duplicates: int = 0
    near_duplicates: int = 0
    harder_duplicates: int = 0
    """Harder tasks that were the same as, or near, an earlier harder one or one of the main tasks."""
    graded: int = 0
    accepted: int = 0
    """Demonstrations, of the main tasks, that the grader gives the full reward."""
    grader_errors: int = 0
    rows: dict[str, int] = field(default_factory=dict)

    def metrics(self) -> dict[str, float | int | str | None]:
        """As the manifest shows them."""
        return {
            "tasks": self.tasks,
            "harder_tasks": self.harder_tasks,
            "exact_duplicates": self.exact_duplicates,
            "near_duplicates": self.near_duplicates,
            "harder_duplicates": self.harder_duplicates,
            "accepted_share": self.accepted / self.graded if self.graded else None,
            "grader_errors": self.grader_errors,
            **{f"rows_{split}": rows for split, rows in self.rows.items()},
        }


@dataclass
class SplitWriter:
    """Writes the rows of one split as shards of `shard_rows` rows; holds no more than one shard and one block."""

    folder: Path
    shard_rows: int
    provenance: dict[str, str]
    rows: int = 0
    paths: list[Path] = field(default_factory=list)
    waiting: pa.Table = field(default_factory=SCHEMA.empty_table)

    def add(self, table: pa.Table) -> None:
        """Take rows, and write the shards that are full."""
        self.rows += len(table)
        self.waiting = pa.concat_tables([self.waiting, table])
        while len(self.waiting) >= self.shard_rows:
            self.write(self.waiting.slice(0, self.shard_rows))
            self.waiting = self.waiting.slice(self.shard_rows)

    def finish(self) -> None:
        """Write what is left."""
        if len(self.waiting):
            self.write(self.waiting)

    def write(self, table: pa.Table) -> None:
        """Commit one shard."""
        path = self.folder / f"shard-{len(self.paths):06d}.parquet"
        with commit(path) as aside:
            write_shard(aside, table, self.provenance)
        self.paths.append(path)


def assemble(
    config: StageConfig, blocks: list[Block], folder: Path, job: Job, provenance: dict[str, str]
) -> tuple[list[Path], Counts]:
    """Write train/, validation/, evaluation/ and harder/ below `folder`, anew. Returns the shards and the counts.

    Blocks pass through one at a time; what stays in memory is 8 bytes a task, and the index of near duplicates.
    """
    for split in (*SPLITS, HARDER):
        shutil.rmtree(folder / split, ignore_errors=True)
    writers = {split: SplitWriter(folder / split, config.synth.shard_rows, provenance) for split in (*SPLITS, HARDER)}
    counts = Counts()
    progress = Progress(folder, total=sum(block.tasks for block in blocks), unit="tasks")
    for block, table in unique_rows(config, blocks, folder, job, counts):
        if block.harder:
            writers[HARDER].add(table)
        else:
            splits = assign_splits(id_keys(table["id"]), config.synth.validation_share, config.synth.evaluation_share)
            for index, split in enumerate(SPLITS):
                writers[split].add(table.filter(pa.array(splits == index)))
        job.beat(f"block {block.index} is in the shards")
        progress.update(progress.done + block.tasks, "removing duplicates, writing shards")
    for writer in writers.values():
        writer.finish()
    counts.rows = {split: writer.rows for split, writer in writers.items()}
    check_not_empty(config.synth, counts)
    return [path for writer in writers.values() for path in writer.paths], counts


def unique_rows(
    config: StageConfig, blocks: list[Block], folder: Path, job: Job, counts: Counts
) -> Iterator[tuple[Block, pa.Table]]:
    """Each block with those of its rows (`SCHEMA`) that no earlier row has said, exactly or nearly."""
    environment = make(config.environment)
    keys = [id_keys(read_block(block, folder, ["id"])["id"]) for block in blocks]
    first = np.split(first_occurrences(np.concatenate(keys)), np.cumsum([len(part) for part in keys])[:-1])
    similarity = config.synth.near_duplicate_similarity
    near = NearDuplicates(similarity) if similarity < 1 else None
    for block, kept in zip(blocks, first, strict=True):
        stop_if_asked(job)
        table = read_block(block, folder, BLOCK_SCHEMA.names)
        exact = table.filter(pa.array(kept))
        unique = exact if near is None else exact.filter(new_rows(environment, near, exact))
        count(counts, block, table, len(table) - len(exact), len(exact) - len(unique))
        yield block, unique.select(SCHEMA.names)


def new_rows(environment: BaseEnvironment, near: NearDuplicates, table: pa.Table) -> pa.Array:
    """Which rows are unlike all earlier ones, bool [n]."""
    prompts = [environment.canonical(prompt) for prompt in table["prompt"].to_pylist()]
    pairs = zip(prompts, read_signatures(table), strict=True)
    return pa.array([near.is_new(prompt, signature) for prompt, signature in pairs], pa.bool_())


def count(counts: Counts, block: Block, table: pa.Table, exact: int, near: int) -> None:
    """Add a block to the counts."""
    if block.harder:
        counts.harder_tasks += len(table)
        counts.harder_duplicates += exact + near
        return
    counts.tasks += len(table)
    counts.exact_duplicates += exact
    counts.near_duplicates += near
    counts.grader_errors += table["accepted"].null_count
    counts.graded += len(table) - table["accepted"].null_count
    counts.accepted += table["accepted"].to_pylist().count(True)


def check_not_empty(synth: SynthConfig, counts: Counts) -> None:
    """ValueError when a split that is wanted has no rows, with the counts and what to change."""
    wanted = {
        "train": True,
        "validation": synth.validation_share > 0,
        "evaluation": True,
        HARDER: counts.harder_tasks > 0,
    }
    empty = [split for split, needed in wanted.items() if needed and not counts.rows[split]]
    if empty:
        raise ValueError(
            f"no rows for {', '.join(empty)}: {counts.tasks} tasks, less {counts.exact_duplicates} exact and "
            f"{counts.near_duplicates} near duplicates, gave {counts.rows['train']} train, "
            f"{counts.rows['validation']} validation and {counts.rows['evaluation']} evaluation rows; "
            f"{counts.harder_tasks} harder tasks, less {counts.harder_duplicates} duplicates, gave "
            f"{counts.rows[HARDER]}. Give more tasks (synth.num_tasks, or rows in your file), change "
            "synth.validation_share (0 for none) or synth.evaluation_share, raise synth.near_duplicate_similarity, or "
            "give other harder tasks (synth.harder_tasks: 0 for none)"
        )
