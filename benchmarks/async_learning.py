"""Greedy success that asynchronous mode reaches on the default task, against synchronous mode at equal samples.

Each seed is `qianka run` of the demo with that seed, once in each mode: one synth and one sft stage, then the rl stage
with all that it starts (in asynchronous mode one learner and one actor, each a process), and the evaluate stage, over
the same prompts. Both modes take as many steps, of as many samples. The figure is the mean over the seeds.

`docs/learning.svg` is drawn anew: success of the samples of each step, and greedy success after SFT and in both modes.
Finished stages are kept under runs/learning-SEED, and are run again when their config or code differs.
By itself, `python -m benchmarks.async_learning [SEED]...`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.algorithms import SMALL
from benchmarks.commands import QIANKA, ROOT, execute, figure
from benchmarks.drawing import Line, draw
from checkpoints.manifest import NAME, Result
from data.metrics import read_metrics
from workflow.config import DEFAULT, load

MODES = ("synchronous", "asynchronous")
SEEDS = (1, 2, 3)
PICTURE = ROOT / "docs" / "learning.svg"


class Learned(NamedTuple):
    """Greedy success over the evaluation split, in percent, and that of the samples of each step, from 0 to 1."""

    sft: float
    rl: float
    curve: list[float]


def measure() -> dict[str, str | float]:
    """Both modes with each seed."""
    found = compare(SEEDS)
    reached = {mode: mean(found[seed][mode].rl for seed in SEEDS) for mode in MODES}
    return figure("async_learning", reached["asynchronous"], reached["synchronous"], "% greedy success")


def compare(seeds: Sequence[int]) -> dict[int, dict[str, Learned]]:
    """By seed and mode; prints the table and draws the picture."""
    found = {seed: {mode: learn(seed, mode) for mode in MODES} for seed in seeds}
    shown = Table("seed", "after SFT", *MODES, "difference", title="greedy success, percent")
    panels: dict[str, list[Line]] = {}
    for seed, learned in found.items():
        sft, first, second = learned[MODES[0]].sft, *(learned[mode].rl for mode in MODES)
        shown.add_row(str(seed), f"{sft:.1f}", f"{first:.1f}", f"{second:.1f}", f"{second - first:+.1f}")
        title = f"seed {seed}: greedy {sft:.1f}% → {first:.1f}% and {second:.1f}%"
        panels[title] = [Line(mode, learned[mode].curve) for mode in MODES]
    Console().print(shown)
    rl = load([str(DEFAULT)]).rl
    PICTURE.write_text(
        draw(panels, "success of the samples of a step", "samples", rl.prompts_per_step * rl.samples_per_prompt)
    )
    return found


def learn(seed: int, mode: str) -> Learned:
    """One run of the demo; what it shares with the other mode is there already the second time."""
    name = f"learning-{seed}"
    settings = [f"name={name}", f"seed={seed}", f"rl.mode={mode}", "slurm.actors.count=1", "slurm.executor=local"]
    execute([*QIANKA, "run", str(DEFAULT), *settings, *(f"evaluate.{small}" for small in SMALL)], ROOT)
    rl, evaluate = (Result(Path(ROOT, "runs", name, stage, NAME)) for stage in ("rl", "evaluate"))
    curve = read_metrics(rl.folder)["success"].to_pylist()
    sft, after = (evaluate.manifest.metrics[f"{policy}_greedy"] for policy in ("sft", "rl"))
    assert isinstance(sft, float) and isinstance(after, float)
    print(f"seed {seed}, {mode}: {100 * sft:.1f}% -> {100 * after:.1f}%", flush=True)
    return Learned(100 * sft, 100 * after, curve)


if __name__ == "__main__":
    compare([int(word) for word in sys.argv[1:]] or SEEDS)
