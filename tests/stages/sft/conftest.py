"""Rows and a model with which the sft stage takes a second."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from checkpoints.manifest import NAME, commit_manifest
from data.rows import SCHEMA, row_id
from data.shards import write_shard
from stages.sft.config import StageConfig

Rows = list[tuple[str, str, str]]


def rows_of(count: int, seed: int) -> Rows:
    """Prompt, answer and trace; every third row has no trace."""
    numbers = random.Random(seed)
    rows = []
    for index in range(count):
        digits = [str(numbers.randrange(10)) for _ in range(numbers.randrange(2, 12))]
        answer = str(sum(map(int, digits)) % 10)
        rows.append(("+".join(digits) + ":", answer, "" if index % 3 == 0 else ";".join(digits) + ">" + answer))
    return rows


def table_of(rows: Rows) -> pa.Table:
    entries = [
        {"id": row_id(p), "prompt": p, "answer": a, "trace": t, "level": 1, "seed": -1, "source": "test"}
        for p, a, t in rows
    ]
    return pa.Table.from_pylist(entries, SCHEMA)


@pytest.fixture
def synth(attempt: Callable[[str, dict[str, Any]], Path]) -> Callable[..., Path]:
    """`synth(train, validation)` is the manifest of a finished synth stage with these rows."""

    def made(train: Rows | None = None, validation: Rows | None = None) -> Path:
        folder = attempt("synth", {})
        splits = {"train": train or rows_of(50, 1), "validation": rows_of(7, 2) if validation is None else validation}
        paths = []
        for split, rows in splits.items():
            if rows:
                paths.append(folder / split / "part-00000.parquet")
                paths[-1].parent.mkdir()
                write_shard(paths[-1], table_of(rows), {})
        commit_manifest(folder, paths, {})
        return folder / NAME

    return made


@pytest.fixture
def config() -> Callable[..., StageConfig]:
    """`config(steps=..)` with other values of the section."""

    def made(model: dict[str, Any] | None = None, **sft: Any) -> StageConfig:
        sizes = {"hidden_size": 32, "num_layers": 2, "intermediate_size": 48, "max_positions": 64}
        small = {
            "steps": 12,
            "batch_sequences": 8,
            "micro_batch_tokens": 100,
            "checkpoint": {"every_steps": 4},
            "validate_every_steps": 5,
            "optimizer": {"warmup_steps": 2},
        }
        return StageConfig.model_validate(
            {"seed": 1, "model": model or {"architecture": sizes}, "sft": {**small, **sft}}
        )

    return made
