"""Graded completions: how a completion is graded, and the Parquet file of one policy, suite and rank.

A completion ends in one of five ways, each counted apart: it succeeds, its answer is wrong, no answer could be read in
it (parse failure), it ran into `max_new_tokens` (truncated), or the grader itself failed (grader error: not graded, so
left out of every share, because a broken grader says nothing about the policy).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkpoints.commit import commit
from data.shards import read_provenance, write_shard
from stages.evaluate.suites import Case
from stages.rollout.flight import Played

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),  # of the task: the digest of its unperturbed prompt
        pa.field("kind", pa.string(), nullable=False),  # of perturbation, else empty
        pa.field("level", pa.int32(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),  # as the policy saw it
        pa.field("completion", pa.string(), nullable=False),
        pa.field("reward", pa.float64()),  # of the environment, 0 when unfinished, null when the grader failed
        pa.field("finished", pa.bool_(), nullable=False),
        pa.field("parsed", pa.bool_(), nullable=False),
        pa.field("grader_error", pa.string()),  # null when graded
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
    ]
)


def graded_row(case: Case, played: Played) -> dict[str, Any]:
    """One row of `SCHEMA`. The reward of an unfinished completion is 0 whatever it says."""
    return {
        "id": case.task["id"],
        "kind": case.kind,
        "level": case.task["level"],
        "sample": case.sample,
        "prompt": case.prompt,
        "completion": played.text,
        "reward": None if played.error else float(played.reward * played.finished),
        "finished": played.finished,
        "parsed": played.parsed,
        "grader_error": played.error or None,
        "tokens": len(played.tokens),
        "seed": case.seed,
    }


class RowFiles:
    """The committed row files of one attempt: rows/<policy>-<suite>-rank-0000.parquet."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        """`folder` is the attempt folder."""
        self.folder, self.rank, self.world_size = folder / "rows", rank, world_size

    def path(self, unit: str) -> Path:
        """This rank's file of `unit`, which is `<policy>-<suite>`."""
        return self.folder / f"{unit}-rank-{self.rank:04}.parquet"

    def done(self, unit: str) -> bool:
        """Whether this rank has nothing left to do for `unit`."""
        return self.path(unit).exists() or _complete(self.all(unit))

    def all(self, unit: str) -> list[Path]:
        """The files of `unit` of all ranks, in rank order."""
        return sorted(self.folder.glob(f"{unit}-rank-*.parquet"))

    def remove_partial(self, unit: str) -> None:
        """Remove what ranks of another world size began of `unit` and did not finish. Rank 0 calls it at start."""
        files = self.all(unit)
        if not _complete(files):
            for path in files:
                if _world_size(path) != self.world_size:
                    path.unlink()

    def write(self, unit: str, rows: Sequence[dict[str, Any]]) -> None:
        """Commit this rank's rows of `unit`."""
        table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
        with commit(self.path(unit)) as aside:
            write_shard(aside, table, {"world_size": str(self.world_size)})

    def read(self, unit: str) -> pa.Table:
        """All ranks' rows of a finished `unit`, in an order that does not depend on the world size."""
        files = self.all(unit)
        assert _complete(files), f"{unit}: rows are missing"
        table = pa.concat_tables([pq.read_table(path, schema=SCHEMA) for path in files])
        return table.sort_by([("id", "ascending"), ("kind", "ascending"), ("sample", "ascending")])


def _world_size(path: Path) -> int:
    return int(read_provenance(path)["world_size"])


def _complete(files: Sequence[Path]) -> bool:
    return bool(files) and len(files) == _world_size(files[0])
