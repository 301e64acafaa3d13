"""What the loops of all modes have in common: what a start begins with, and how a step ends."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import torch.distributed as dist
from transformers import PreTrainedTokenizerFast

from checkpoints.manifest import Result
from data.budget import Budget
from data.job import Job, Stopped
from data.shards import read_split
from data.tokenizer import encode_prompt, load_tokenizer
from stages.algorithms.algorithm import Algorithm
from stages.environments.base import BaseEnvironment
from stages.environments.hash import environment_hash
from stages.environments.registry import make
from stages.environments.rewards import load_terms
from stages.environments.self_test import NUM_TASKS, self_test
from stages.rl.config import StageConfig
from stages.rl.log import StepLog
from stages.rl.rows import RowLog
from stages.rl.state import State
from stages.rl.step_files import StepFiles
from stages.trainer.device import any_rank
from stages.trainer.learner import Learner
from stages.trainer.policy import Policy, load_policy
from stages.trainer.reference import load_reference


class Parts(NamedTuple):
    """What a start works with, in any mode."""

    tokenizer: PreTrainedTokenizerFast
    environment: BaseEnvironment
    train: pa.Table
    """The split that prompts are drawn from."""
    known: list[list[int]]
    """Prompts of the first tasks, on which engine and policy are compared."""
    learner: Learner
    reference: Policy | None
    """Frozen; None where the algorithm has no use for it."""
    step_files: StepFiles
    log: StepLog
    budget: Budget
    first: int
    """The step that it goes on after."""
    state: State
    """As it is after that step."""


def begin(
    config: StageConfig, algorithm: Algorithm, inputs: dict[str, Result], folder: Path, job: Job, at_end: ExitStack
) -> Parts:
    """Load what every mode needs, and go back to the last checkpoint; `at_end` closes what has to be closed."""
    model = inputs["sft"].folder / "model"
    log = at_end.enter_context(closing(StepLog(folder, config.rl.steps, job.is_first)))
    train = read_split(inputs["synth"].folder, "train")
    environment = make(config.environment)
    tasks = train.slice(0, NUM_TASKS).to_pylist()
    self_test(environment, tasks)
    tokenizer = load_tokenizer(model)
    known = [encode_prompt(tokenizer, environment.reset(task=task)[0]) for task in tasks]
    learner = _learner(config, algorithm, model, job)
    reference = load_reference(model, job) if algorithm.needs_reference else None
    first, saved = learner.resume(folder / "checkpoints") or (0, {})
    terms = [term.name for term in load_terms(config.rl.rewards)]
    step_files = StepFiles(folder, job, environment_hash(config.environment), terms)
    if job.is_first:
        step_files.resume(first)
    dist.barrier()
    log.resume(first)
    budget, state = Budget(job, folder, "rl"), State.from_json(saved)
    return Parts(tokenizer, environment, train, known, learner, reference, step_files, log, budget, first, state)


def end_step(
    config: StageConfig, parts: Parts, folder: Path, step: int, state: State, logs: Sequence[RowLog] = ()
) -> bool:
    """Commit `step` where it is due, and say whether it was. All ranks call it together.

    Raises Stopped, after a commit, when the time is over.
    """
    rl, budget = config.rl, parts.budget
    stop = any_rank(budget.must_stop())
    due = stop or step == rl.steps or step % rl.checkpoint.every_steps == 0
    if due:
        commit_step(parts, folder, step, state, logs)
        stop = stop or any_rank(budget.must_stop())
    if stop:
        raise Stopped(f"rl: {budget.why()}, committed step {step} of {rl.steps}")
    return due


def commit_step(parts: Parts, folder: Path, step: int, state: State, logs: Sequence[RowLog] = ()) -> None:
    """Commit `step`: its metrics, its further `logs`, and then the checkpoint. All ranks call it together."""
    with parts.budget.save(step):
        parts.log.commit(step)
        for log in logs:
            log.commit(step)
        parts.learner.save(folder / "checkpoints", step, state.to_json())


def _learner(config: StageConfig, algorithm: Algorithm, model: Path, job: Job) -> Learner:
    rl, total_steps = config.rl, config.rl.steps * algorithm.epochs * algorithm.minibatches
    policy = load_policy(model, config.seed, value_head=algorithm.needs_values)
    recompute, keep = rl.activation_checkpointing, rl.checkpoint.keep
    return Learner(policy, rl.optimizer, rl.learning_rate, total_steps, job, recompute, keep)
