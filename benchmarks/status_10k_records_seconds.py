"""Seconds of `qianka status` when an attempt holds the records of 10,000 chunks of work, against an empty run.

For each chunk: a block of rows, what its rank has signed of its start, and how it ended. At most 2 s.
"""

import shutil
import tempfile
from pathlib import Path

from benchmarks.commands import QIANKA, execute, fastest, figure, write_config
from checkpoints.manifest import NAME
from slurm.record import read_record
from slurm.verdict import Verdict

CHUNKS = 10_000


def measure() -> dict[str, str | float]:
    """The fastest of several runs of each, in turn."""
    with tempfile.TemporaryDirectory() as name:
        full, empty = Path(name) / "full", Path(name) / "empty"
        full.mkdir()
        write_config(full, "slurm: {executor: local}")
        execute([*QIANKA, "stage", "synth", "tiny.yaml"], full)
        shutil.copytree(full, empty)
        stage = full / "runs" / "tiny" / "synth"
        record = read_record(stage)
        assert record
        attempt = stage / record.attempt
        for path in (stage / NAME, attempt / NAME):
            path.unlink()  # interrupted: status has to look at every chunk
        for chunk in range(CHUNKS):
            _write_chunk(attempt, chunk)
        command = [*QIANKA, "status"]
        (with_chunks,), (without,) = fastest(command, folder=full), fastest(command, folder=empty)
        assert "chunk 0" in execute(command, full)
    return figure("status_10k_records_seconds", with_chunks, without)


def _write_chunk(attempt: Path, chunk: int) -> None:
    said = {"why": "error", "message": f"chunk {chunk}", "node": "mx0", "job_id": "1", "time": chunk, "rank": chunk}
    (attempt / "blocks").mkdir(exist_ok=True)
    (attempt / "blocks" / f"{chunk:06d}.parquet").write_bytes(b"PAR1")
    roll = attempt / "roll" / "local-1"
    roll.mkdir(parents=True, exist_ok=True)
    (roll / f"{chunk}.json").write_text('{"node": "mx0", "pid": 1, "time": 1.0}')
    (attempt / f"verdict-{chunk:04d}.json").write_text(
        Verdict.model_validate(said | {"traceback": "line\n" * 40}).model_dump_json()
    )
