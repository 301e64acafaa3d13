"""Seconds from `qianka stage sft` to the first line of the stage's own code, against sbatch of the same imports.

The baseline is a batch script that starts the same interpreter with srun and imports what the stage imports. Both jobs
have one node of the test cluster, and run alternately. At most 1.5 times the baseline.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.cluster import cluster, wait_for
from benchmarks.commands import QIANKA, execute, figure, write_config

ROUNDS = 5
BASELINE = f"""#!/bin/bash
#SBATCH --output=baseline-%j.out
srun {sys.executable} -P -c 'import stages.sft.run; print("here", flush=True)'
"""


def measure() -> dict[str, str | float]:
    """Medians: a controller that ticks once a second makes each start a matter of luck."""
    with cluster(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_config(folder, "slurm: {executor: slurm}")
        (folder / "baseline.sh").write_text(BASELINE)
        execute([*QIANKA, "stage", "synth", "tiny.yaml"], folder)
        pairs = [(_ours(folder, seed), _baseline(folder)) for seed in range(ROUNDS)]
    ours, baseline = (statistics.median(side) for side in zip(*pairs, strict=True))
    return figure("submit_overhead", ours, baseline)


def _ours(folder: Path, number: int) -> float:
    """A new learning rate is a new attempt."""
    start = time.time()
    command = [*QIANKA, "stage", "sft", "tiny.yaml", f"sft.learning_rate={0.01 + number / 1000}"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as waiter:
        seconds = wait_for(lambda: _says(folder / "runs/tiny/sft", "*/log/*_0_log.out", "rank(s)", start)) - start
        assert waiter.wait() == 0
    return seconds


def _baseline(folder: Path) -> float:
    start = time.time()
    subprocess.run(["sbatch", "--quiet", "baseline.sh"], cwd=folder, check=True)
    return wait_for(lambda: _says(folder, "baseline-*.out", "here", start)) - start


def _says(folder: Path, pattern: str, words: str, since: float) -> float | None:
    """The present time, when a file that is newer than `since` has the words."""
    files = [path for path in folder.glob(pattern) if path.stat().st_mtime >= since]
    return time.time() if any(words in path.read_text() for path in files) else None
