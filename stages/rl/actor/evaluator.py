"""The evaluator scores published versions while training goes on: greedily, on rows of the validation split.

Its scores may be used to choose a version, or a setting; so it leaves the evaluation split alone, on which the evaluate
stage judges what was chosen. No stage trains on the validation split; sft measures its loss there.
"""

import time
from pathlib import Path

import pyarrow as pa
from transformers import PreTrainedTokenizerFast

from checkpoints.manifest import Result
from data.job import Job
from data.rows import Row
from data.shards import read_split
from stages.environments.base import BaseEnvironment
from stages.rl.actor.loop import IDLE_SECONDS, announced
from stages.rl.config import StageConfig
from stages.rl.coordinator.client import Membership, send_score
from stages.rl.messages import Rates, Score
from stages.rl.weights.fetch import Weights
from stages.rollout.engine import Engine
from stages.rollout.episodes import encode_first, play_episodes
from stages.rollout.flight import Start

SPLIT = "validation"
RETRY_SECONDS = 0.5


def evaluate(
    config: StageConfig,
    inputs: dict[str, Result],
    folder: Path,
    engine: Engine,
    tokenizer: PreTrainedTokenizerFast,
    environment: BaseEnvironment,
    membership: Membership,
    weights: Weights,
    job: Job,
) -> None:
    """Score each version that is due, and the newest one where several have come in the meantime."""
    settings = config.rl.asynchronous
    rows = held_out(inputs["synth"], settings.evaluate_prompts)
    last: int | None = None
    while not (job.stop_requested or membership.leave or membership.silence > 60 * settings.patience_minutes):
        source = weights.hand_to(engine)
        if source is None or (last is not None and source.version < last + max(1, settings.evaluate_every)):
            membership.wait(IDLE_SECONDS)
            job.beat("waiting for weights")
            continue
        last, began = source.version, time.monotonic()
        starts = [Start(row, encode_first(engine, tokenizer, row["id"], row["prompt"]), seed=0) for row in rows]
        played = play_episodes(
            engine,
            tokenizer,
            environment,
            starts,
            config.rl.sampling,
            greedy=True,
            on_progress=lambda ended: job.beat(f"{ended} of {len(rows)} prompts scored"),
        )
        graded = [one for one in played if not one.error]
        success = sum(one.reward >= 1 for one in graded) / max(1, len(graded))  # as in `stages.rl.summary`
        seconds = time.monotonic() - began
        tokens = sum(len(one.tokens) for one in played)
        membership.report(Rates(seconds=seconds, busy=seconds, tokens=tokens, episodes=len(played), version=last))
        _send(folder, Score(version=last, prompts=len(played), success=success, seconds=seconds), job)
    membership.close("told to stop" if job.stop_requested else membership.leave)


def held_out(synth: Result, count: int) -> list[Row]:
    """`count` rows of the validation split, whose order by their ids, which are hashes, is one by chance."""
    if not synth.paths(f"{SPLIT}/"):
        raise ValueError(
            f"rl.asynchronous.evaluate_every: {synth.folder} has no {SPLIT} split to score the policy on; set "
            "synth.validation_share above 0, or evaluate_every to 0"
        )
    return read_split(synth.folder, SPLIT).sort_by("id").slice(0, count).to_pylist()


def _send(folder: Path, score: Score, job: Job) -> None:
    """Tell the coordinator, which may be on its way back."""
    while not job.stop_requested:
        try:
            send_score(announced(folder, "coordinator"), score)
        except (pa.ArrowException, OSError):
            time.sleep(RETRY_SECONDS)
        else:
            return
