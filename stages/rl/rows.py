"""Logs of which a step has many rows: Parquet files beside the metrics, committed with the checkpoint that covers them.

What lies beyond the checkpoint of a start is dropped, since those steps are made anew.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class RowLog:
    """Writes one of them. Every rank has one; only the first rank writes."""

    def __init__(self, folder: Path, schema: pa.Schema, job_is_first: bool) -> None:
        """`folder` is the log's own; the first column of `schema` is the step."""
        self.folder, self.schema, self.writes = folder, schema, job_is_first
        self.rows: list[tuple[Any, ...]] = []

    def resume(self, step: int) -> None:
        """Go on after `step`, that of the checkpoint: what lies beyond it is dropped."""
        self.rows = []
        for path in row_files(self.folder) if self.writes else []:
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Note rows of a step, each with a value for each column."""
        if self.writes:
            self.rows += rows

    def commit(self, step: int) -> None:
        """Make the steps up to `step` safe, just before the checkpoint that covers them."""
        if not self.rows:
            return
        path = self.folder / f"step-{step:06d}.parquet"
        path.parent.mkdir(exist_ok=True)
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*self.rows, strict=True), self.schema, strict=True)
        ]
        aside = path.with_name(path.name + ".writing")
        with aside.open("wb") as stream:
            pq.write_table(pa.table(columns, schema=self.schema), stream)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(path)
        self.rows = []


def row_files(folder: Path) -> list[Path]:
    """The committed files of the log in `folder`, in the order of their steps."""
    return sorted(folder.glob("step-*.parquet"))
