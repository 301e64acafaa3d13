"""Steps of reinforcement learning a second, against TRL's GRPOTrainer with the same model, prompts and reward.

A step generates 32 prompts x 8 samples at temperature 1 (at most 40 tokens; answers end by themselves, at ragged
lengths), grades them, and takes two optimizer steps of Dr. GRPO without KL. Timed from the end of a step to the end
of the next. On our side that is the rl stage itself, with its parity gate, files of rollouts, metrics and log; on
TRL's `GRPOTrainer.train` without logging, which has no such things. Checkpoints are in neither.

Both are measured in seconds of the CPU on one thread, since a step this small is no faster on two, and in turn, TRL in
an environment of its own under benchmarks/.cache (installed when it is not there) and at the better of two batch sizes.
"""

import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import stages.rl.run as stage
from benchmarks.commands import ROOT, execute, figure
from benchmarks.rl_step import CACHE, MOST_TOKENS, PROMPTS, SAMPLES, Warm, demo, open_attempt, stage_config
from data.job import Job
from data.shards import read_split
from stages.rl.log import StepLog
from stages.rl.prompts import draw_prompts

PACKAGES = ("torch==2.13.0", "trl==1.16.*", "transformers<5.20")
ROUNDS, STEPS = 3, 4
BATCHES = (128, 32)
"""Samples of one forward pass of TRL."""


def measure() -> dict[str, str | float]:
    """Medians over the steps of all rounds; the first step of each round warms up."""
    warm, python = demo(), _python()
    ours: list[float] = []
    theirs: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    for seed in range(1, ROUNDS + 1):
        ours += _ours(warm, seed)
        for batch in BATCHES:
            theirs[batch] += _theirs(warm, python, batch, seed)
    return figure("rl_step_vs_trl", 1 / median(ours), 1 / min(map(median, theirs.values())), "steps/s")


def _ours(warm: Warm, seed: int) -> list[float]:
    ends: list[float] = []
    original = StepLog.step

    def step(log: StepLog, *given: Any) -> None:
        original(log, *given)
        ends.append(time.process_time())

    with tempfile.TemporaryDirectory() as name, patch.object(StepLog, "step", step):
        open_attempt(Path(name))
        stage.run(stage_config(STEPS, seed), {"synth": warm.data, "sft": warm.tuned}, Path(name), Job(cpus=1))
    seconds = [after - before for before, after in pairwise(ends)]
    print(f"ours: {seconds}")
    return seconds


def _theirs(warm: Warm, python: str, batch: int, seed: int) -> list[float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings: dict[str, Any] = {"threads": 1, "prompts": PROMPTS, "samples": SAMPLES, "minibatches": 2}
        settings |= {"batch": batch, "most_tokens": MOST_TOKENS, "steps": STEPS, "seed": seed, "folder": name}
        split = read_split(warm.data.folder, "train")
        drawn, _ = draw_prompts(seed, split["id"], 0, PROMPTS * STEPS, set())
        rows = [split.slice(row, 1).to_pylist()[0] for row in drawn]
        (folder / "rows.json").write_text(json.dumps(rows))
        (folder / "settings.json").write_text(json.dumps(settings))
        script = Path(__file__).with_name("trl_step.py")
        arguments = [ROOT, warm.model, folder / "rows.json", folder / "settings.json"]
        said = execute([python, str(script), *map(str, arguments)], folder)
    found = json.loads(said.splitlines()[-1])
    print(f"TRL, batches of {batch}: {found}")
    return found["seconds"]


def _python() -> str:
    """The interpreter of TRL's environment, which is made when it is not there."""
    folder = CACHE / "trl"
    stamp, python = folder / "installed", folder / "bin" / "python"
    if not stamp.exists():
        print(f"installing {' '.join(PACKAGES)} into {folder} (minutes, once)")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        stamp.touch()
    return str(python)


if __name__ == "__main__":
    print(measure())
