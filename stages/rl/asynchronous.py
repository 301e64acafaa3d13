"""Asynchronous mode: take what actors have played, learn from it, publish the new weights.

The actors are processes of their own (`stages.rl.actor`), which come and go as they like.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

from data.job import Job, Stopped
from stages.algorithms.algorithm import Algorithm
from stages.rl.batch import Batches
from stages.rl.batch_log import BatchLog
from stages.rl.config import StageConfig
from stages.rl.experience import make_experience
from stages.rl.parts import Parts, commit_step, end_step
from stages.rl.rates import curves, rates_log, rates_of
from stages.rl.services import Services
from stages.rl.state import State
from stages.rl.summary import summarise
from stages.rl.update import update


def train(config: StageConfig, algorithm: Algorithm, parts: Parts, folder: Path, job: Job, at_end: ExitStack) -> State:
    """The steps that are missing; the state after the last one. All ranks call it together."""
    rl, state, learner = config.rl, parts.state, parts.learner
    trained, rates = BatchLog(folder, job.is_first), rates_log(folder, job.is_first)
    logs = (trained, rates)
    for log in logs:
        log.resume(parts.first)
    services = Services(config, parts, folder, job, at_end)
    writer = at_end.enter_context(ThreadPoolExecutor(1, "writer"))
    batches = at_end.enter_context(closing(Batches(config, algorithm, parts, services, folder, job)))
    services.keeper.committed(state)
    services.publish(state)
    committed = parts.first
    for step in parts.budget.measured(range(parts.first + 1, rl.steps + 1)):
        started = time.monotonic()
        batch = batches.next(step, state)
        if batch is None:
            if committed < state.policy_version:
                commit_step(parts, folder, state.policy_version, state, logs)
            raise Stopped(f"rl: {parts.budget.why()}, committed step {state.policy_version} of {rl.steps}")
        services.tell(batch.state)
        summary = summarise(batch.everything, batch.prompts, parts.step_files.terms, parts.environment.max_turns)
        written = writer.submit(parts.step_files.write, step, 0, state.policy_version, batch.kept)
        if step < rl.steps:
            batches.look_ahead(batch)
        collected = time.monotonic()

        began = parts.reference if state.policy_version else learner.policy  # which no update has moved yet
        experience = make_experience(learner.policy, algorithm, batch.kept, rl, began)
        prepared = time.monotonic()
        learned = update(learner, algorithm, experience, rl, (config.seed, step))
        updated = time.monotonic()

        written.result()  # what is done with, and told of, is on disk
        trained.add(batch.rows)
        state = batch.state.done_with([one.position for one in batch.taken], (), {})
        state = state.after_step(state.cursor, summary.tokens, updated - started, summary.failed)
        services.publish(state)
        services.children.stepped()
        ended = time.monotonic()
        waiting, communication = batch.seconds_waiting, batch.seconds_agreeing + ended - updated
        seconds = {"experience": prepared - collected, "update": updated - prepared}
        seconds |= {"waiting": waiting, "communication": communication, "step": ended - started}
        values = summary.metrics | batch.metrics | experience.metrics | learned | services.news.metrics()
        values |= {"prompts_set_aside": len(state.set_aside), **speeds(values, len(batch.kept), seconds)}
        if step % rl.checkpoint.every_steps == 0:
            values |= services.weights_bytes()
        played = rates_of(step, state.policy_version, services.news.members())
        rates.add(played)
        parts.log.step(step, values, curves(played))
        if end_step(config, parts, folder, step, state, logs):
            committed = step
            services.keeper.committed(state)
    services.keeper.settle()
    services.end("the run is done")
    if left := services.news.left_over():
        print(f"rl: the last step is done; left over, and not trained: {left}", flush=True)
    return state


def speeds(values: dict[str, float], samples: int, seconds: dict[str, float]) -> dict[str, float]:
    """Metrics of a step's time, where nothing is played by the learner."""
    found = {f"seconds_{phase}": value for phase, value in seconds.items() if phase != "step"}
    found["tokens_per_second"] = values["tokens"] / seconds["step"]
    found["samples_per_second"] = samples / seconds["step"]
    found["waiting_share"] = (seconds["waiting"] + seconds["communication"]) / seconds["step"]
    if values["tokens_trained"]:
        found["update_tokens_per_second"] = values["tokens_trained"] / (seconds["experience"] + seconds["update"])
    return found
