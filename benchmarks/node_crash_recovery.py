"""Seconds from the crash of a node to the stage's next committed step, against Slurm's own time to start the job again.

A node of a job of two crashes on the test cluster. Slurm notices, and starts the job on other nodes; the stage resumes
from its checkpoint and commits the next one. At most 10 s more than Slurm takes.
"""

import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.cluster import SCRIPT, cluster, show, wait_for
from benchmarks.commands import QIANKA, execute, figure, write_config
from slurm.record import read_record

SITE = "slurm: {executor: slurm, interface: lo, sft: {nodes: 2}}"
STEPS = "sft.steps=4000"


def measure() -> dict[str, str | float]:
    """One crash; the job's own restart is the baseline."""
    with cluster(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_config(folder, SITE)
        execute([*QIANKA, "stage", "synth", "tiny.yaml", STEPS], folder)
        stage = folder / "runs/tiny/sft"
        with subprocess.Popen(
            [*QIANKA, "stage", "sft", "tiny.yaml", STEPS], cwd=folder, stdout=subprocess.DEVNULL
        ) as waiter:
            wait_for(lambda: _newest(stage) or None)
            record = read_record(stage)
            assert record and record.job_id
            job = record.job_id
            nodes = subprocess.check_output(["squeue", "-h", "-j", job, "-o", "%N"], text=True).strip()
            lost = subprocess.check_output(["scontrol", "show", "hostnames", nodes], text=True).split()[1]
            start = time.monotonic()
            subprocess.run([*SCRIPT, "kill-node", lost], check=True)
            wait_for(lambda: True if show(job, "JobState") != "RUNNING" else None)
            before = _newest(stage)
            restarted = wait_for(lambda: time.monotonic() if _runs_again(job) else None) - start
            committed = wait_for(lambda: time.monotonic() if _newest(stage) > before else None) - start
            subprocess.run([*QIANKA, "cancel", "tiny"], cwd=folder, check=True, capture_output=True)
            waiter.wait()
        subprocess.run([*SCRIPT, "start-node", lost], check=True)
    return figure("node_crash_recovery", committed, restarted)


def _newest(stage: Path) -> int:
    """The newest committed step, 0 without one."""
    steps = [int(path.name[5:]) for path in stage.glob("*/checkpoints/step-*") if path.name[5:].isdigit()]
    return max(steps, default=0)


def _runs_again(job: str) -> bool:
    return show(job, "JobState") == "RUNNING" and show(job, "Restarts") == "1"
