"""What each shipped algorithm adds to the greedy success of SFT on the default task, in percentage points, by seed.

Every seed is the demo with that seed: one synth and one sft stage, then for each algorithm the rl stage with the
settings of its file, and the evaluate stage over the evaluation split. The stages are the real ones, each in a process
of one thread. The figure is the smallest gain of all; the baseline is what is demanded of each, `LEAST_GAIN`.

Finished stages are kept under runs/algorithms, each with its log, and one that was interrupted goes on. They are run
again when the config, the algorithm's file or the code of the stage differ.
By itself, `python -m benchmarks.algorithms [NAME]...` prints the table of all or some algorithms.
"""

import importlib
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from checkpoints.manifest import NAME, Provenance, Result, digest
from data.job import Job
from slurm.fingerprint import code_files
from stages.algorithms.load import SHIPPED
from workflow.config import DEFAULT, INPUTS, RunConfig, load

FOLDER = Path(__file__).parents[1] / "runs" / "algorithms"
SEEDS = (1, 2, 3)
LEAST_GAIN = 15.0
# Only the greedy suite counts here; the others are made as small as they can be.
SMALL = ("num_prompts=1024", "num_harder=1", "num_perturbed=1", "num_sampled_prompts=1", "bootstrap_resamples=1")


class Gain(NamedTuple):
    """Greedy success over the evaluation split, in percent."""

    sft: float
    rl: float

    @property
    def points(self) -> float:
        """What reinforcement learning added."""
        return self.rl - self.sft


def measure() -> dict[str, str | float]:
    """All shipped algorithms, each with all seeds."""
    names = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    least = min(gain.points for gain in table(names).values())
    return {
        "name": "algorithms",
        "value": least,
        "unit": "points of greedy success",
        "baseline": LEAST_GAIN,
        "ratio": least / LEAST_GAIN,
    }


def table(algorithms: Sequence[str]) -> dict[tuple[str, int], Gain]:
    """By algorithm and seed; the table is printed as well."""
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    workers = min(len(os.sched_getaffinity(0)), len(SEEDS))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for future in [pool.submit(warm_up, seed) for seed in SEEDS]:
            future.result()
        asked = {(name, seed): pool.submit(gain, name, seed) for name in algorithms for seed in SEEDS}
        gains = {key: future.result() for key, future in asked.items()}
    shown = Table("algorithm", *(f"seed {seed}" for seed in SEEDS), "smallest gain", title="SFT -> RL, greedy, percent")
    for name in algorithms:
        row = [gains[name, seed] for seed in SEEDS]
        shown.add_row(name, *(f"{g.sft:.1f} -> {g.rl:.1f}" for g in row), f"{min(g.points for g in row):+.1f}")
    Console().print(shown)
    return gains


def warm_up(seed: int) -> dict[str, Result]:
    """The results of synth and sft, which all algorithms of a seed share."""
    run = _config(seed)
    results: dict[str, Result] = {}
    for stage in ("synth", "sft"):
        results[stage] = _result(run, stage, results, "")
    return results


def gain(algorithm: str, seed: int) -> Gain:
    """Reinforcement learning and evaluation of one algorithm with one seed."""
    run = _config(seed, f"rl.algorithm={algorithm}", *(f"evaluate.{small}" for small in SMALL))
    results = warm_up(seed)
    for stage in ("rl", "evaluate"):
        results[stage] = _result(run, stage, results, algorithm)
    found = results["evaluate"].manifest.metrics
    sft, rl = (found[f"{policy}_greedy"] for policy in ("sft", "rl"))
    assert isinstance(sft, float) and isinstance(rl, float)
    return Gain(100 * sft, 100 * rl)


def _config(seed: int, *overrides: str) -> RunConfig:
    return load([str(DEFAULT), f"seed={seed}", *overrides])


def _result(run: RunConfig, stage: str, results: dict[str, Result], algorithm: str) -> Result:
    """The stage's result: as it was found, else run to its end here, on one thread."""
    config = run.stage(stage)
    inputs = {name: results[name] for name in INPUTS[stage]}
    text = (SHIPPED / f"{algorithm}.yaml").read_text() if algorithm else ""
    parents = {name: result.digest for name, result in inputs.items()}
    code = {path: found for path, found in code_files(stage).items() if path.endswith(".py")}
    made_of = {"config": config.model_dump(mode="json"), "inputs": parents, "algorithm": text, "code": code}
    key = digest(made_of)
    folder = FOLDER / f"seed-{run.seed}" / "-".join(filter(None, [algorithm, stage, key[:8]]))
    if not (folder / NAME).exists():
        folder.mkdir(parents=True, exist_ok=True)
        Provenance(
            stage=stage,
            attempt=folder.name,
            config=config.model_dump(mode="json"),
            config_digest=key,
            code_digest="",
            code_version="",
            inputs=parents,
        ).write(folder)
        with (folder / "log").open("a") as log, redirect_stdout(log):
            importlib.import_module(f"stages.{stage}.run").run(config, inputs, folder, Job())
    return Result(folder / NAME)


if __name__ == "__main__":
    table(sys.argv[1:] or sorted(path.stem for path in SHIPPED.glob("*.yaml")))
