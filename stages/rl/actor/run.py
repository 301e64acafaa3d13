"""An actor, or the evaluator: loads the model, joins the run, and works until it is sent home or told to stop."""

import gc
import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from checkpoints.manifest import Result
from data.job import Job, Pulse
from data.shards import read_split
from data.tokenizer import load_tokenizer
from stages.environments.processes import threads
from stages.environments.registry import make
from stages.rl.actor.beginnings import Beginnings
from stages.rl.actor.evaluator import evaluate
from stages.rl.actor.loop import Actor, Lines, announced, prompts_at_once
from stages.rl.actor.playing import Playing
from stages.rl.actor.puts import Puts
from stages.rl.config import StageConfig
from stages.rl.coordinator.client import Membership
from stages.rl.engine import actors_engine
from stages.rl.messages import Join
from stages.rl.store.client import Store
from stages.rl.weights.fetch import Weights
from stages.rl.weights.relay import Relay
from stages.rollout.parity import ParityError
from stages.trainer.device import address_of

STILL_LEASES = 3
"""Times `lease_seconds` without a turn of its loop, until an actor renews no more, and others play what it holds. The
watchdog of its process, which is more patient, ends it."""


def run(config: StageConfig, inputs: dict[str, Result], folder: Path, job: Job, role: str = "actor") -> None:
    """Play (or, as "evaluator", score) for the rl attempt in `folder`. Returns when it is over, or `job` shall stop.

    Raises ParityError when the engine does not say what the policy says, and ValueError for what does not load.
    """
    name = f"{job.job_id}.{job.rank}"
    member = f"{name}+{job.restarts}" if job.restarts else name  # each start has a name of its own
    own, settings = folder / "actors" / name, config.rl.asynchronous
    own.mkdir(parents=True, exist_ok=True)
    with ExitStack() as at_end:
        tokenizer = load_tokenizer(inputs["sft"].folder / "model")
        engine = at_end.enter_context(actors_engine(config, inputs["sft"].folder / "model", tokenizer, job, own))
        environment = make(config.environment)
        weights = at_end.enter_context(closing(Weights(announced(folder, "weights"), member, job.supernode)))
        join = Join(
            member=member,
            role="evaluator" if role == "evaluator" else "actor",
            node=job.node,
            supernode=job.supernode,
            job=job.job_id,
            samples_at_once=prompts_at_once(config),
        )
        still = partial(stands_still, job.pulse, STILL_LEASES * settings.lease_seconds)
        membership = Membership(announced(folder, "coordinator"), join, still, weights.want)
        job.pulse.has_started()
        if role == "evaluator":
            evaluate(config, inputs, folder, engine, tokenizer, environment, membership, weights, job)
            return
        train = read_split(inputs["synth"].folder, "train")
        relay = at_end.enter_context(
            closing(Relay(announced(folder, "weights"), own, member, address_of(job), job.supernode, tls=settings.tls))
        )
        pool = at_end.enter_context(threads(settings.environment_calls))
        gives_up = threading.Event()
        store = Store(folder / "endpoints", 60 * settings.patience_minutes, gives_up.is_set)
        puts = Puts(store, membership, member, 2 * prompts_at_once(config))
        lines = Lines(membership, weights, relay, puts, Beginnings(store), gives_up)
        actor = Actor(config, Playing(config, engine, tokenizer, environment, train, pool), lines, job)
        gc.freeze()  # what is loaded stays: collections need not look through it
        at_end.callback(gc.unfreeze)
        try:
            why = actor.run()
        except (ParityError, ValueError) as error:
            tell_the_learner(membership, error)
            raise
        print(f"{member} leaves: {why}", flush=True)
        actor.leave(why)


def stands_still(pulse: Pulse, seconds: float) -> str:
    """What is said of a loop that has not turned for so long, as where an engine hangs; "" of one that turns."""
    if pulse.is_slow or time.monotonic() < pulse.at + seconds:
        return ""
    return f"its loop has stood still for {seconds:g} s ({pulse.event}), so it renews no more"


def tell_the_learner(membership: Membership, error: Exception) -> None:
    """Of what ends the run (`stages.rl.news.ENDS`): another actor would do no better."""
    trouble = f"{type(error).__name__}: {error}"
    membership.complain(trouble)
    membership.close(trouble)
