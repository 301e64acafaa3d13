"""Seconds from `qianka stage` to its word that it has found the job that runs, against one `squeue`. At most 2 s.

The job waits in the queue of the test cluster; the first waiter was killed.
"""

import signal
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.cluster import cluster
from benchmarks.commands import QIANKA, ROUNDS, fastest, figure, write_config

COMMAND = [*QIANKA, "stage", "synth", "tiny.yaml"]


def measure() -> dict[str, str | float]:
    """The fastest of several."""
    with cluster(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_config(folder, "slurm: {executor: slurm, additional: {begin: now+1hour}}")
        _until(folder, "submitted")
        ours = min(_until(folder, "re-attached") for _ in range(ROUNDS))
        (baseline,) = fastest(["squeue", "--noheader"], folder=folder)
        subprocess.run([*QIANKA, "cancel", "tiny"], cwd=folder, check=True, capture_output=True)
    return figure("reattach_seconds", ours, baseline)


def _until(folder: Path, word: str) -> float:
    """Seconds until the command has said `word`; it is killed then."""
    start = time.perf_counter()
    with subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.PIPE, text=True) as waiter:
        assert waiter.stdout
        lines = list[str]()
        for line in waiter.stdout:
            lines.append(line)
            if word in line:
                break
        seconds = time.perf_counter() - start
        assert word in lines[-1], "".join(lines)
        waiter.send_signal(signal.SIGKILL)
    return seconds
