"""Steps of reinforcement learning a second, against TRL's GRPOTrainer with the same model, prompts and reward.

A step generates 32 prompts x 8 samples at temperature 1 (at most 40 tokens; answers end by themselves, at ragged
lengths), grades them, and takes two optimizer steps of Dr. GRPO without KL. Both sides are measured in CPU seconds on
one thread, in turn, TRL in an environment of its own under benchmarks/.cache and at the better of two batch sizes.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import ROOT, execute
from benchmarks.rl_step import CACHE, MOST_TOKENS, PROMPTS, SAMPLES, Step, Warm, demo
from data.job import Job
from stages.trainer.device import distributed

PACKAGES = ("torch==2.13.0", "trl==1.16.*", "transformers<5.20")
ROUNDS, STEPS = 3, 4
BATCHES = (128, 32)
"""Samples of one forward pass of TRL."""


def measure() -> dict[str, str | float]:
    """Medians over the steps of all rounds; the first step of each round warms up."""
    warm, python = demo(), _python()
    ours: list[float] = []
    theirs: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    with distributed(Job()):
        for number in range(ROUNDS):
            ours += _ours(Step(warm, Job()))
            for batch in BATCHES:
                theirs[batch] += _theirs(warm, python, batch, number)
    value, baseline = 1 / median(ours), 1 / min(map(median, theirs.values()))
    return {
        "name": "rl_step_vs_trl",
        "value": value,
        "unit": "steps/s",
        "baseline": baseline,
        "ratio": value / baseline,
    }


def _ours(step: Step) -> list[float]:
    seconds: list[float] = []
    for _ in range(STEPS):
        start = time.process_time()
        step.learn(step.play())
        seconds.append(time.process_time() - start)
    return seconds[1:]


def _theirs(warm: Warm, python: str, batch: int, number: int) -> list[float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings: dict[str, Any] = {"threads": 1, "prompts": PROMPTS, "samples": SAMPLES, "minibatches": 2}
        settings |= {"batch": batch, "most_tokens": MOST_TOKENS, "steps": STEPS, "seed": number, "folder": name}
        (folder / "rows.json").write_text(json.dumps(warm.rows(PROMPTS * STEPS)))
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
