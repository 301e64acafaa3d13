"""Peak memory of a step of colocated mode against synchronous mode, on a CPU: the same stage, in a process for each.

The model has 9M parameters and a critic (PPO learns also where no sample is right), so that weights, gradients and
optimizer can be told from the rest. The highest peak is printed for rollout and update: in a rollout the optimizer's
state is away, in an update the engine's cache is. The figure is the peak of the rollout in colocated mode, less what a
process has before it loads a model.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import stages.rl.synchronous as loop
from benchmarks.rl_step import ENVIRONMENT, demo, open_attempt
from checkpoints.manifest import NAME, Result, commit_manifest
from data.job import Job
from data.tokenizer import load_tokenizer
from stages.rl.config import StageConfig
from stages.rl.rounds import Rounds
from stages.rl.run import run
from stages.trainer.architecture import random_model
from stages.trainer.config import ArchitectureConfig

STEPS = 3
MODEL = ArchitectureConfig(hidden_size=384, num_layers=5, num_heads=6, num_key_value_heads=2, intermediate_size=1024)


def measure() -> dict[str, str | float]:
    """Prints the peaks."""
    found = {mode: _peaks(mode) for mode in ("synchronous", "colocated")}
    for mode, peaks in found.items():
        print(mode, ", ".join(f"{phase} {peak:.0f} MB" for phase, peak in peaks.items()))
    value, baseline = found["colocated"]["rollout"], found["synchronous"]["rollout"]
    return {
        "name": "colocated_memory",
        "value": value,
        "unit": "MB at the peak of a rollout",
        "baseline": baseline,
        "ratio": value / baseline,
    }


def _peaks(mode: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.colocated_memory", mode]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout
    return json.loads(said.splitlines()[-1])


def _memory(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew


def main(mode: str) -> None:
    """Run the stage, and print the peak of each phase as JSON."""
    peaks = {"rollout": 0.0, "update": 0.0}
    base, play, update = _memory("VmRSS"), Rounds.play, loop.update

    def watched(phase: str, call: object) -> object:
        def inside(*given: object) -> object:
            _forget_peak()
            result = call(*given)  # pyright: ignore
            peaks[phase] = max(peaks[phase], _memory("VmHWM") - base)
            return result

        return inside

    warm = demo()
    rl = {"mode": mode, "algorithm": "ppo", "steps": STEPS, "prompts_per_step": 4, "sampling": {"max_new_tokens": 40}}
    config = StageConfig.model_validate({"seed": 1, "environment": ENVIRONMENT, "rl": rl})
    with tempfile.TemporaryDirectory() as name:
        model, folder = Path(name) / "sft", Path(name) / "rl"
        for path in (model, folder):
            open_attempt(path)
        tokenizer = load_tokenizer(warm.model)
        random_model(MODEL, 1).save_pretrained(model / "model")
        tokenizer.save_pretrained(model / "model")
        commit_manifest(model, list((model / "model").iterdir()), {})
        with (
            patch.object(Rounds, "play", watched("rollout", play)),
            patch.object(loop, "update", watched("update", update)),
        ):
            run(config, {"synth": warm.data, "sft": Result(model / NAME)}, folder, Job(cpus=1))
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(sys.argv[1])
