"""Blocks: the unit of work and of restart. A block's rows follow from the config and its place alone."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.dedupe import SIGNATURE_BYTES, signatures
from data.rows import SCHEMA, Row, completion_of, row_id
from data.user_rows import FileBlock, read_blocks, read_rows
from stages.environments.base import BaseEnvironment, GraderError
from stages.environments.config import RowsConfig
from stages.environments.registry import make
from stages.synth.config import StageConfig

FOLDER = "blocks"
BLOCK_SCHEMA = pa.schema(
    [
        *SCHEMA,
        # Whether the grader gives the demonstration the full reward; null when the grader itself failed.
        pa.field("accepted", pa.bool_()),
        # MinHash signature of the canonical prompt; null when near duplicates are kept.
        pa.field("signature", pa.binary(SIGNATURE_BYTES)),
    ]
)


@dataclass(frozen=True)
class Block:
    """Consecutive tasks of one kind: `tasks` of them, after the `first` ones."""

    index: int
    """Place among all blocks: the blocks of harder tasks come last."""
    first: int
    tasks: int
    harder: bool
    rows: FileBlock | None = None
    """Where the user's rows stand; None for tasks that an environment draws."""

    def path(self, folder: Path) -> Path:
        """The block's file in the attempt folder."""
        return folder / FOLDER / f"block-{self.index:06d}.parquet"


def plan_blocks(config: StageConfig) -> list[Block]:
    """All blocks of the stage, the same for any number of ranks and workers."""
    size, environment = config.synth.block_tasks, config.environment
    if isinstance(environment, RowsConfig):
        found = [(rows, False) for rows in read_blocks(Path(environment.path), size)]
        if environment.harder_path and config.synth.harder_tasks:
            harder = read_blocks(Path(environment.harder_path), size, limit=config.synth.harder_tasks)
            found += [(rows, True) for rows in harder]
        return [Block(index, rows.first, rows.rows, harder, rows) for index, (rows, harder) in enumerate(found)]
    blocks: list[Block] = []
    for total, harder in ((config.synth.num_tasks, False), (config.synth.harder_tasks, True)):
        for first in range(0, total, size):
            blocks.append(Block(len(blocks), first, min(size, total - first), harder))
    return blocks


def task_seed(seed: int, harder: bool, index: int) -> int:
    """The seed of one task, in 0..2^63-1, from the run's seed and the task's place among those of its kind."""
    text = f"{seed} {'harder' if harder else 'main'} {index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def make_block(config: StageConfig, block: Block) -> pa.Table:
    """The rows of a block (`BLOCK_SCHEMA`), graded and with their signatures. Runs in a worker process."""
    environment = make(config.environment)
    rows = draw_rows(environment, config.seed, block) if block.rows is None else import_rows(environment, block.rows)
    columns = {name: [row[name] for row in rows] for name in SCHEMA.names}
    columns["accepted"] = [is_accepted(environment, row) for row in rows]
    columns["signature"] = [None] * len(rows)
    if config.synth.near_duplicate_similarity < 1:
        found = signatures(environment.canonical(row["prompt"]) for row in rows)
        columns["signature"] = [signature.tobytes() for signature in found]
    return pa.table(columns, schema=BLOCK_SCHEMA)


def draw_rows(environment: BaseEnvironment, seed: int, block: Block) -> list[Row]:
    """Tasks that the environment draws, each from a seed of its own."""
    rows: list[Row] = []
    for index in range(block.first, block.first + block.tasks):
        chosen = task_seed(seed, block.harder, index)
        _, info = environment.reset(seed=chosen, harder=block.harder)
        rows.append(make_row(environment, seed=chosen, source=environment.name, **info))
    return rows


def import_rows(environment: BaseEnvironment, rows: FileBlock) -> list[Row]:
    """The user's rows, each with its file and line."""
    return [
        make_row(environment, row.prompt, row.answer, row.trace, row.level, -1, f"{rows.path.name}:{row.line}")
        for row in read_rows(rows)
    ]


def make_row(
    environment: BaseEnvironment, prompt: str, answer: str, trace: str, level: int, seed: int, source: str
) -> Row:
    """A row with the id of its canonical prompt."""
    row = row_id(environment.canonical(prompt))
    return Row(id=row, prompt=prompt, answer=answer, trace=trace, level=level, seed=seed, source=source)


def is_accepted(environment: BaseEnvironment, row: Row) -> bool | None:
    """Whether the grader gives the row's demonstration the full reward; None when the grader fails on it."""
    environment.reset(task=row)
    try:
        return environment.step(completion_of(row))[1] == 1
    except GraderError:
        return None


def read_block(block: Block, folder: Path, columns: list[str]) -> pa.Table:
    """These columns of a written block, without metadata."""
    return pq.ParquetFile(block.path(folder)).read(columns).replace_schema_metadata(None)


def read_signatures(block: pa.Table) -> np.ndarray:
    """The signatures of a block, uint32 [n, permutations]."""
    return np.array([np.frombuffer(signature, np.uint32) for signature in block["signature"].to_pylist()])
