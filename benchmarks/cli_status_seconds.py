"""Seconds of `qianka status` on a finished run, against a bare Python interpreter. At most 0.6 s on two cores."""

import tempfile
from pathlib import Path

from benchmarks.commands import PYTHON, QIANKA, execute, fastest, figure, write_config


def measure() -> dict[str, str | float]:
    """The fastest of several runs of each, in turn, where all four stages of a tiny run have a result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_config(folder, "slurm: {executor: local}")
        for stage in ("synth", "sft", "rl", "evaluate"):
            execute([*QIANKA, "stage", stage, "tiny.yaml"], folder)
        ours, bare = fastest([*QIANKA, "status"], [*PYTHON, "-c", "pass"], folder=folder)
        assert "done" in execute([*QIANKA, "status"], folder)
    return figure("cli_status_seconds", ours, bare)
