"""What the benchmarks of the command line share: how long a command takes, and a small run to ask about."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = [sys.executable, "-P"]
QIANKA = [*PYTHON, "-m", "workflow.cli"]
ROUNDS = 5
TINY = """\
environment: {name: arithmetic, modulus: 4, operators: [1, 2], harder_operators: [3], misread_rate: 0, space_rate: 0}
model:
  architecture: {hidden_size: 32, num_layers: 1, num_heads: 2, num_key_value_heads: 1, intermediate_size: 64}
synth: {num_tasks: 1200, block_tasks: 20, shard_rows: 100, harder_tasks: 16, workers: 1}
sft: {learning_rate: 0.01, steps: 200, batch_sequences: 16, checkpoint: {every_steps: 10}, validate_every_steps: 100}
rl: {steps: 4, prompts_per_step: 8, samples_per_prompt: 4, sampling: {max_new_tokens: 16, slots: 16}}
evaluate: {num_prompts: 16, num_harder: 8, num_perturbed: 4, num_sampled_prompts: 4, samples_per_prompt: 8}
"""


def execute(command: list[str], folder: Path) -> str:
    """Run a command that has to succeed, on one thread, and return what it printed."""
    settings = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed: {done.stdout}{done.stderr}"
    return done.stdout


def fastest(*commands: list[str], folder: Path) -> list[float]:
    """Seconds of the fastest of `ROUNDS` runs of each command, taken in turn."""
    seconds = [float("inf")] * len(commands)
    for _ in range(ROUNDS):
        for number, command in enumerate(commands):
            start = time.perf_counter()
            execute(command, folder)
            seconds[number] = min(seconds[number], time.perf_counter() - start)
    return seconds


def write_config(folder: Path, *lines: str) -> None:
    """The config file tiny.yaml of a run whose stages take seconds."""
    (folder / "tiny.yaml").write_text("\n".join((TINY, *lines, "")))


def figure(name: str, value: float, baseline: float, unit: str = "s") -> dict[str, str | float]:
    """The fields of `frame.Figure`."""
    return {"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": value / baseline}
