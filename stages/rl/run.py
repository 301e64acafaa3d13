"""Reinforcement learning, synchronous: play a step's prompts, grade, learn from it, go on with the new weights."""

import time
from contextlib import ExitStack, closing
from pathlib import Path

import torch.distributed as dist

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
from stages.rollout.parity import ParityError
from stages.trainer.device import any_rank, distributed
from stages.trainer.export import weights_digest
from stages.trainer.learner import Learner
from stages.trainer.policy import load_policy
from stages.trainer.reference import load_reference


def run(config: StageConfig, inputs: dict[str, Result], folder: Path, job: Job) -> None:
    """Train from where `folder` stands to the last step; the result is `folder`/model, trajectories and manifest."""
    algorithm = load_algorithm(config.rl.algorithm)
    check_metric_names(algorithm)
    with distributed(job), closing(StepLog(folder, config.rl.steps, job.is_first)) as log, ExitStack() as at_end:
        if job.is_first:
            remove_torn(folder)
        dist.barrier()
        _train(config, algorithm, inputs, folder, job, log, at_end)


def _train(
    config: StageConfig,
    algorithm: Algorithm,
    inputs: dict[str, Result],
    folder: Path,
    job: Job,
    log: StepLog,
    at_end: ExitStack,
) -> None:
    rl, hash_of_environment = config.rl, environment_hash(config.environment)
    train = read_split(inputs["synth"].folder, "train")
    environment = make(config.environment)
    self_test(environment, train.slice(0, NUM_TASKS).to_pylist())
    tokenizer = load_tokenizer(inputs["sft"].folder / "model")
    policy = load_policy(inputs["sft"].folder / "model", config.seed, value_head=algorithm.needs_values)
    total_steps = rl.steps * algorithm.epochs * algorithm.minibatches
    learner = Learner(
        policy, rl.optimizer, rl.learning_rate, total_steps, job, rl.activation_checkpointing, rl.checkpoint.keep
    )
    reference = load_reference(inputs["sft"].folder / "model", job) if algorithm.needs_reference else None
    first, saved = learner.resume(folder / "checkpoints") or (0, {})
    state = State(**saved)
    engine = at_end.enter_context(closing(make_engine(config, learner, tokenizer, folder)))
    known = encode_prompt(tokenizer, environment.reset(task=train.slice(0, 1).to_pylist()[0])[0])
    gate = Gate(learner, engine, rl.sampling, known)
    player = Player(config, engine, tokenizer, environment, job)
    names = [term.name for term in player.terms]
    journal = Journal(folder, job, hash_of_environment, names)
    rounds = Rounds(config, algorithm, train, player, journal, job)
    if job.is_first:
        journal.resume(first)
    dist.barrier()
    log.resume(first)
    budget = Budget(job, folder, "rl")

    for step in budget.measured(range(first + 1, rl.steps + 1)):
        started = time.monotonic()
        engine.wake()
        refresh(engine, learner, state.policy_version)
        gate.check_generation(state.policy_version)
        rollouts = rounds.play(step, state)
        summary = summarise(rollouts.everything, rollouts.prompts, names, environment.max_turns)
        values = summary.metrics | rollouts.metrics
        try:
            values |= gate.check_rollouts(rollouts.everything, step, state.policy_version)
        except ParityError:
            # What an earlier start has played convicts the weights that were resumed, and stays as it is.
            if not rollouts.read_back:
                journal.refuse(step)
            raise
        engine.sleep()
        played = time.monotonic()

        began = reference if state.policy_version else policy  # which no update has moved yet
        experience = make_experience(policy, algorithm, rollouts.kept, rl, began)
        prepared = time.monotonic()
        values |= experience.metrics | update(learner, algorithm, experience, rl, (config.seed, step))

        ended = time.monotonic()
        state = state.after_step(rollouts.cursor, summary.tokens, ended - started, summary.failed)
        phases = {"rollout": played - started, "experience": prepared - played, "update": ended - prepared}
        values |= {"prompts_set_aside": len(state.set_aside), **speed(values, rollouts.read_back, phases)}
        log.step(step, values)

        stop = any_rank(budget.must_stop())
        if stop or step == rl.steps or step % rl.checkpoint.every_steps == 0:
            with budget.save(step):
                log.commit(step)
                learner.save(folder / "checkpoints", step, state.to_json())
            stop = stop or any_rank(budget.must_stop())
        if stop:
            raise Stopped(f"rl: {budget.why()}, committed step {step} of {rl.steps}")

    dist.barrier()
    files = learner.export(tokenizer, folder / "model")
    if job.is_first:
        commit_manifest(
            folder,
            [*files, *journal.files(), *metric_shards(folder), folder / WARNINGS],
            {**_first_and_last(folder), "steps": rl.steps, "tokens": state.tokens, "seconds": state.seconds},
            environment_hash=hash_of_environment,
            tokenizer_digest=tokenizer_digest(tokenizer),
            weights_digest=weights_digest(folder / "model"),
        )


def _first_and_last(folder: Path) -> dict[str, float]:
    """Reward and success of the first step and of the last."""
    table = read_metrics(folder)
    ends = {"first": 0, "last": -1}
    return {f"{name}_{end}": table[name][row].as_py() for name in ("reward", "success") for end, row in ends.items()}
