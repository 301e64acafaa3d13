"""Reinforcement learning, synchronous: play a step's prompts, grade, learn from it, go on with the new weights."""

import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from transformers import PreTrainedTokenizerFast

from checkpoints.commit import remove_torn
from checkpoints.manifest import Result, commit_manifest
from data.budget import Budget
from data.job import Job, Stopped
from data.metrics import metric_shards, read_metrics
from data.shards import read_split
from data.tokenizer import encode_prompt, load_tokenizer, tokenizer_digest
from data.warnings import FILE as WARNINGS
from stages.algorithms.algorithm import Algorithm
from stages.algorithms.load import load_algorithm
from stages.environments.hash import environment_hash
from stages.environments.registry import make
from stages.environments.self_test import NUM_TASKS, self_test
from stages.rl.config import StageConfig
from stages.rl.engine import make_engine, refresh
from stages.rl.experience import make_experience
from stages.rl.journal import Journal
from stages.rl.log import StepLog, speed
from stages.rl.parity import Gate
from stages.rl.rollouts import Player
from stages.rl.rounds import Rounds
from stages.rl.state import State
from stages.rl.summary import check_metric_names, summarise
from stages.rl.update import update
from stages.rollout.engine import Engine
from stages.trainer.device import any_rank, distributed
from stages.trainer.export import weights_digest
from stages.trainer.learner import Learner
from stages.trainer.policy import Policy, load_policy
from stages.trainer.reference import load_reference


class Parts(NamedTuple):
    """What a start works with."""

    tokenizer: PreTrainedTokenizerFast
    learner: Learner
    reference: Policy | None
    """Frozen; None where the algorithm has no use for it."""
    engine: Engine
    gate: Gate
    player: Player
    rounds: Rounds
    log: StepLog
    state: State
    """Where it begins."""


def run(config: StageConfig, inputs: dict[str, Result], folder: Path, job: Job) -> None:
    """Train from where `folder` stands to the last step; the result is `folder`/model, trajectories and manifest."""
    algorithm = load_algorithm(config.rl.algorithm)
    check_metric_names(algorithm)
    with distributed(job), ExitStack() as at_end:
        if job.is_first:
            remove_torn(folder)
        dist.barrier()
        parts = _begin(config, algorithm, inputs, folder, job, at_end)
        state = _train(config, algorithm, parts, folder, job)
        dist.barrier()
        files = parts.learner.export(parts.tokenizer, folder / "model")
        if job.is_first:
            _publish(config, parts, state, folder, files)


def _train(config: StageConfig, algorithm: Algorithm, parts: Parts, folder: Path, job: Job) -> State:
    """The steps that are missing; the state after the last one."""
    rl, state, names = config.rl, parts.state, [term.name for term in parts.player.terms]
    learner, engine, budget = parts.learner, parts.engine, Budget(job, folder, "rl")
    for step in budget.measured(range(state.policy_version + 1, rl.steps + 1)):
        started = time.monotonic()
        engine.wake()
        refresh(engine, learner, state.policy_version)
        parts.gate.check_generation(state.policy_version)
        rollouts = parts.rounds.play(step, state)
        engine.sleep()
        summary = summarise(rollouts.everything, rollouts.prompts, names, parts.player.environment.max_turns)
        played = time.monotonic()

        began = parts.reference if state.policy_version else learner.policy  # which no update has moved yet
        experience = make_experience(learner.policy, algorithm, rollouts.kept, rl, began)
        prepared = time.monotonic()
        learned = update(learner, algorithm, experience, rl, (config.seed, step))

        ended = time.monotonic()
        state = state.after_step(rollouts.cursor, summary.tokens, ended - started, summary.failed)
        phases = {"rollout": played - started, "experience": prepared - played, "update": ended - prepared}
        values = summary.metrics | rollouts.metrics | experience.metrics | learned
        values |= {"prompts_set_aside": len(state.set_aside), **speed(values, rollouts.read_back, phases)}
        parts.log.step(step, values)

        stop = any_rank(budget.must_stop())
        if stop or step == rl.steps or step % rl.checkpoint.every_steps == 0:
            with budget.save(step):
                parts.log.commit(step)
                learner.save(folder / "checkpoints", step, state.to_json())
            stop = stop or any_rank(budget.must_stop())
        if stop:
            raise Stopped(f"rl: {budget.why()}, committed step {step} of {rl.steps}")
    return state


def _begin(
    config: StageConfig, algorithm: Algorithm, inputs: dict[str, Result], folder: Path, job: Job, at_end: ExitStack
) -> Parts:
    """Load all that the steps need, and go back to the last checkpoint; `at_end` closes what has to be closed."""
    model = inputs["sft"].folder / "model"
    log = at_end.enter_context(closing(StepLog(folder, config.rl.steps, job.is_first)))
    train = read_split(inputs["synth"].folder, "train")
    environment = make(config.environment)
    tasks = train.slice(0, NUM_TASKS).to_pylist()
    self_test(environment, tasks)
    tokenizer = load_tokenizer(model)
    learner = _learner(config, algorithm, model, job)
    reference = load_reference(model, job) if algorithm.needs_reference else None
    first, saved = learner.resume(folder / "checkpoints") or (0, {})
    engine = at_end.enter_context(closing(make_engine(config, learner, tokenizer, folder)))
    known = [encode_prompt(tokenizer, environment.reset(task=task)[0]) for task in tasks]
    gate = Gate(learner, engine, config.rl, known)
    player = Player(config, engine, tokenizer, environment, job)
    journal = Journal(folder, job, environment_hash(config.environment), [term.name for term in player.terms])
    if job.is_first:
        journal.resume(first)
    dist.barrier()
    log.resume(first)
    rounds = Rounds(config, algorithm, train, player, journal, gate, first)
    return Parts(tokenizer, learner, reference, engine, gate, player, rounds, log, State(**saved))


def _learner(config: StageConfig, algorithm: Algorithm, model: Path, job: Job) -> Learner:
    rl, total_steps = config.rl, config.rl.steps * algorithm.epochs * algorithm.minibatches
    policy = load_policy(model, config.seed, value_head=algorithm.needs_values)
    recompute, keep = rl.activation_checkpointing, rl.checkpoint.keep
    return Learner(policy, rl.optimizer, rl.learning_rate, total_steps, job, recompute, keep)


def _publish(config: StageConfig, parts: Parts, state: State, folder: Path, model: list[Path]) -> None:
    """Commit the manifest, which makes the folder a result; `model` are the model's files. Rank 0 calls it."""
    journal = parts.rounds.journal
    commit_manifest(
        folder,
        [*model, *journal.files(), *metric_shards(folder), folder / WARNINGS],
        {**_first_and_last(folder), "steps": config.rl.steps, "tokens": state.tokens, "seconds": state.seconds},
        environment_hash=journal.environment_hash,
        tokenizer_digest=tokenizer_digest(parts.tokenizer),
        weights_digest=weights_digest(folder / "model"),
    )


def _first_and_last(folder: Path) -> dict[str, float]:
    """Reward and success of the first step and of the last."""
    table = read_metrics(folder)
    ends = {"first": 0, "last": -1}
    return {f"{name}_{end}": table[name][row].as_py() for name in ("reward", "success") for end, row in ends.items()}
