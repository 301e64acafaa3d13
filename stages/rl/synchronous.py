"""Synchronous and colocated mode: play a step's prompts, grade, learn from it, go on with the new weights."""

import time
from contextlib import ExitStack, closing
from pathlib import Path

from data.job import Job
from stages.algorithms.algorithm import Algorithm
from stages.rl.config import StageConfig
from stages.rl.engine import make_engine, refresh
from stages.rl.experience import make_experience
from stages.rl.log import speed
from stages.rl.parity import Gate
from stages.rl.parts import Parts, end_step
from stages.rl.phases import Phases
from stages.rl.rollouts import Player
from stages.rl.rounds import Rounds
from stages.rl.state import State
from stages.rl.summary import summarise
from stages.rl.update import update


def train(config: StageConfig, algorithm: Algorithm, parts: Parts, folder: Path, job: Job, at_end: ExitStack) -> State:
    """The steps that are missing; the state after the last one. All ranks call it together."""
    rl, state, learner = config.rl, parts.state, parts.learner
    engine = at_end.enter_context(closing(make_engine(config, learner, parts.tokenizer, folder)))
    gate = Gate(learner, engine, rl, parts.known)
    player = Player(config, engine, parts.tokenizer, parts.environment, job)
    aside = Phases(rl.mode == "colocated", learner, parts.reference, engine)
    rounds = Rounds(config, algorithm, parts.train, player, parts.step_files, gate, parts.first, aside.playing)
    for step in parts.budget.measured(range(state.policy_version + 1, rl.steps + 1)):
        started = time.monotonic()
        with aside.rollout():
            engine.wake()
            refresh(engine, learner, state.policy_version)
            gate.check_generation(state.policy_version)
            rollouts = rounds.play(step, state)
            engine.sleep()
        terms, max_turns = parts.step_files.terms, parts.environment.max_turns
        summary = summarise(rollouts.everything, rollouts.prompts, terms, max_turns)
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
        end_step(config, parts, folder, step, state)
    return state
