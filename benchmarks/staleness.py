"""What learning from old samples does, on the default task: with a correction for their age, and without one.

Engine and learner are the real ones; only the weights that the engine gets are `LAG` versions behind the policy, as at
the bound `rl.asynchronous.max_staleness: 4`. `UNCORRECTED` is the plain policy gradient, which takes its samples for
the policy's own. All begin with the same fine-tuned model and have the same settings, prompts and seeds.

The figure is the success of the rollouts in the last steps with the worse of the corrected algorithms; the baseline is
that without correction. By itself, `python -m benchmarks.staleness`.
"""

import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.rl_step import ENVIRONMENT, Warm, demo
from data.job import Job
from data.shards import read_split
from data.tokenizer import load_tokenizer
from stages.algorithms.load import load_algorithm
from stages.environments.registry import make
from stages.rl.config import StageConfig
from stages.rl.experience import make_experience
from stages.rl.prompts import draw_prompts
from stages.rl.rollouts import Player, Task
from stages.rl.update import update
from stages.rollout.torch.engine import TorchEngine, unsharded_copy
from stages.trainer.device import distributed
from stages.trainer.learner import Learner
from stages.trainer.policy import load_policy

LAG = 4
CORRECTED = ("decoupled_ppo", "dr_grpo")
STEPS, LAST = 40, 5
LEARNING_RATE = 5e-4
UNCORRECTED = """
description: The policy gradient of samples that are taken for the policy's own, however old they are.
settings: {learning_rate: 5.0e-4}
epochs: 1
minibatches: 2
skip_where_zero: centred
experience:
  mean: {operator: group_mean, takes: {of: reward}}
  centred: {operator: subtract_group, takes: {of: reward, group: mean}}
  advantage: {operator: over_tokens, takes: {of: centred}}
update:
  policy: {operator: policy_forward}
  gradient: {operator: policy_gradient, takes: {logprobs: policy.logprobs, advantage: advantage}}
  loss: {operator: constant_mean, takes: {of: gradient}, values: {tokens: 16}}
metrics:
  entropy: policy.entropy
"""


def measure() -> dict[str, str | float]:
    """Prints the curves."""
    torch.set_num_threads(1)
    curves = {name: curve(name) for name in ("uncorrected", *CORRECTED)}
    title = f"success in five steps up to each, {LAG} versions behind"
    table = Table("algorithm", *(str(step) for step in range(5, STEPS + 1, 5)), title=title)
    for name, found in curves.items():
        table.add_row(name, *(f"{100 * np.mean(found[step - 5 : step]):.0f}%" for step in range(5, STEPS + 1, 5)))
    Console().print(table)
    value, baseline = min(end(curves[name]) for name in CORRECTED), end(curves["uncorrected"])
    return {
        "name": "staleness",
        "value": value,
        "unit": f"success at staleness {LAG}",
        "baseline": baseline,
        "ratio": value / max(baseline, 0.01),
    }


def end(found: Sequence[float]) -> float:
    """The success in the last steps."""
    return float(np.mean(found[-LAST:]))


def curve(name: str, *, lag: int = LAG, steps: int = STEPS, learning_rate: float = LEARNING_RATE) -> list[float]:
    """Success of the rollouts, step by step, with weights that are `lag` versions behind from step `lag` + 1 on."""
    warm = demo()  # before the ranks meet, for the stages that make it meet as well
    with tempfile.TemporaryDirectory() as folder, distributed(Job()):
        return _curve(warm, _path(name, Path(folder)), lag, steps, learning_rate)


def _path(name: str, folder: Path) -> str:
    if name != "uncorrected":
        return name
    (folder / "uncorrected.yaml").write_text(UNCORRECTED.lstrip())
    return str(folder / "uncorrected.yaml")


def _curve(warm: Warm, name: str, lag: int, steps: int, learning_rate: float) -> list[float]:
    algorithm = load_algorithm(name)
    settings = {"algorithm": name, "steps": steps, "learning_rate": learning_rate, "sampling": {"max_new_tokens": 40}}
    config = StageConfig.model_validate({"seed": 1, "environment": ENVIRONMENT, "rl": settings})
    rl, environment, tokenizer = config.rl, make(config.environment), load_tokenizer(warm.model)
    policy = load_policy(warm.model, 1)
    learner = Learner(policy, rl.optimizer, rl.learning_rate, steps * algorithm.minibatches, Job())
    assert isinstance(tokenizer.eos_token_id, int)
    copy = unsharded_copy(policy.model, torch.device("cpu"))
    engine = TorchEngine(copy, tokenizer.eos_token_id, tokenizer.all_special_ids)
    player = Player(config, engine, tokenizer, environment, Job())
    train, cursor, found = read_split(warm.data.folder, "train"), 0, list[float]()
    versions: deque[list[tuple[str, torch.Tensor]]] = deque(maxlen=lag + 1)
    for step in range(1, steps + 1):
        versions.append([(name, weight.clone()) for name, weight in learner.full_weights()])
        engine.update(versions[0], step - len(versions))
        rows, cursor = draw_prompts(config.seed, train["id"], cursor, rl.prompts_per_step, frozenset())
        tasks = [Task(slot, train.slice(row, 1).to_pylist()[0]) for slot, row in enumerate(rows)]
        trajectories = player.play(step, tasks)
        experience = make_experience(policy, algorithm, trajectories, rl)
        try:
            update(learner, algorithm, experience, rl, (config.seed, step))
        except ArithmeticError:  # the gradient is no longer finite
            return found + [0.0] * (steps - len(found))
        found.append(float((trajectories.rewards >= 1).mean()))
    return found


if __name__ == "__main__":
    print(measure())
