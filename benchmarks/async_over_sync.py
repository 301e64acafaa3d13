"""Samples a second of asynchronous mode with one actor and one learner, against synchronous mode.

The rl stage itself in processes of its own on one thread each, with all that it writes but checkpoints: the demo's
model, 32 prompts x 8 samples a step. Timed from the end of a step to the end of a later one, in turn. The share of the
time in which the learner waits or communicates is printed, and the CPU time of a step of each process, their imports
left out: on two cores their sum is what decides.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.commands import ROOT, figure
from benchmarks.rl_step import PROMPTS, SAMPLES, Warm, demo, open_attempt, stage_config
from checkpoints.manifest import NAME
from data.metrics import read_metrics
from data.progress import read_progress
from stages.rl.config import StageConfig

KINDS = ("learner", "actor", "stages.rl.store", "stages.rl.coordinator", "stages.rl.weights")
MODES = ("synchronous", "asynchronous")
ROUNDS, STEPS, WARM_UP = 5, 40, 10
PROGRAM = """
import sys, time
from pathlib import Path
from checkpoints.manifest import NAME, Result
from data.job import Job
from stages.rl.config import StageConfig

which, config, data, tuned, folder = sys.argv[1:]
if which == "actor":
    from stages.rl.actor.run import run
else:
    from stages.rl.run import run
    from stages.rl.log import StepLog
    original = StepLog.step
    def step(log, number, values, *rest):
        original(log, number, {**values, "ended": time.time()}, *rest)
    StepLog.step = step
inputs = {"synth": Result(Path(data)), "sft": Result(Path(tuned))}
run(StageConfig.model_validate_json(config), inputs, Path(folder), Job(job_id=which, cpus=1))
"""


def measure() -> dict[str, str | float]:
    """The median of some rounds of each: the machine's own speed drifts by as much as the best differ."""
    warm = demo()
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    for seed in range(ROUNDS):
        for mode in MODES:
            found[mode].append(_samples_per_second(warm, mode, seed))
    print(found)
    return figure("async_over_sync", median(found["asynchronous"]), median(found["synchronous"]), "samples/s")


def _samples_per_second(warm: Warm, mode: str, seed: int) -> float:
    config = _config(mode, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        open_attempt(folder)
        actors = [_process("actor", config, warm, folder)] if mode == "asynchronous" else []
        learner = _process("learner", config, warm, folder)
        try:
            print(mode, "CPU ms a step:", _cpu(folder, [*actors, learner]))
            if learner.wait():
                raise RuntimeError(f"the learner in {mode} mode has ended with {learner.returncode}")
        finally:
            for actor in actors:
                actor.kill()
                actor.wait()
        rows: Sequence[dict[str, Any]] = read_metrics(folder).to_pylist()[WARM_UP - 1 :]
    if mode == "asynchronous":
        names = ("waiting_share", "seconds_waiting", "seconds_communication", "staleness", "groups_stale")
        print({name: round(sum(row[name] for row in rows) / len(rows), 4) for name in names})
    return PROMPTS * SAMPLES * (len(rows) - 1) / (rows[-1]["ended"] - rows[0]["ended"])


def _cpu(folder: Path, processes: Sequence[subprocess.Popen[bytes]]) -> dict[str, int]:
    """Milliseconds of each kind of process from the end of the warm-up to just before the last step."""
    while processes[-1].poll() is None and _done(folder) < WARM_UP:
        time.sleep(0.02)
    first, before = _done(folder), _times(processes)
    last, after = first, before
    while processes[-1].poll() is None and last < STEPS - 2:
        time.sleep(0.1)
        last, after = _done(folder), _times(processes)
    steps = max(1, last - first)
    return {kind: round(1000 * (seconds - before.get(kind, 0)) / steps) for kind, seconds in after.items()}


def _done(folder: Path) -> int:
    return int((read_progress(folder) or {"done": 0})["done"])


def _times(processes: Sequence[subprocess.Popen[bytes]]) -> dict[str, float]:
    """CPU seconds by kind: learner, actor, and the modules of their children."""
    found: dict[str, float] = {}
    for parent in processes:
        try:
            for process in (root := psutil.Process(parent.pid), *root.children(recursive=True)):
                words, times = process.cmdline(), process.cpu_times()
                kind = next((word for word in words if word in KINDS), "other")
                found[kind] = found.get(kind, 0) + times.user + times.system
        except psutil.NoSuchProcess:
            continue  # it has just ended
    return found


def _config(mode: str, seed: int) -> StageConfig:
    config = stage_config(STEPS, seed + 1).model_dump()
    config["rl"] |= {"mode": mode, "checkpoint": {"every_steps": STEPS}}
    return StageConfig.model_validate(config)


def _process(which: str, config: StageConfig, warm: Warm, folder: Path) -> subprocess.Popen[bytes]:
    paths = [str(result.folder / NAME) for result in (warm.data, warm.tuned)]
    command = [sys.executable, "-c", PROGRAM, which, config.model_dump_json(), *paths, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    print(measure())
