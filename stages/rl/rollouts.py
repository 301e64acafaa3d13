"""Playing prompts: episodes of policy and environment, their rewards, and a table of trajectories."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from data.job import Job
from data.rows import Row
from data.trajectories import Trajectories
from stages.environments.base import BaseEnvironment, GraderError
from stages.environments.processes import later, threads
from stages.environments.rewards import VERIFIER, Episode, load_terms
from stages.rl.config import RLConfig, StageConfig
from stages.rl.prompts import request_seed
from stages.rollout.engine import Engine
from stages.rollout.episodes import encode_first, play_episodes
from stages.rollout.flight import Played, Start

Number = TypeVar("Number", bound=np.generic)
Terms = Callable[[], list[float | GraderError]]
"""Gives the terms of a sample, when they are there."""
LOGGER = logging.getLogger(__name__)


class Task(NamedTuple):
    """A prompt of a step."""

    slot: int
    """Its place among the step's prompts, over all ranks."""
    row: Row


class Rewarded(NamedTuple):
    """A played episode with its reward."""

    slot: int
    played: Played
    limit: int
    """Tokens that the policy might have said."""
    terms: list[float]
    """Before their weights; NaN where one failed, 0 where a failed grader left nothing to compute it from."""
    reward: float | None
    """None when the grader or a term failed."""


class Judge:
    """Gives played episodes their rewards."""

    def __init__(self, config: RLConfig, environment: BaseEnvironment, context: int) -> None:
        """`context` is the engine's."""
        self.sampling, self.environment, self.context = config.sampling, environment, context
        self.terms = load_terms(config.rewards)
        self.slow = any(term.is_own for term in self.terms)
        """Whether the terms may take long."""

    def name(self, number: int, played: Played) -> str:
        """Of a sample, for messages."""
        return f"row {played.start.task['id']}, sample {number}, seed {played.start.seed}"

    def limit(self, played: Played) -> int:
        """Tokens that the policy might have said."""
        room = self.context - len(played.start.prompt)
        return min(self.environment.max_turns * self.sampling.max_new_tokens, room)

    def terms_of(self, played: Played) -> list[float | GraderError]:
        """The value of each term, or how it failed. Of what a failed grader left there is nothing to compute."""
        if played.error:
            return [GraderError(played.error) if term.name == VERIFIER else 0.0 for term in self.terms]
        episode = Episode(
            task=played.start.task,
            turns=tuple(played.said),
            tokens=tuple(played.tokens),
            limit=self.limit(played),
            finished=played.finished,
            reward=played.reward,
            parsed=played.parsed,
        )
        values: list[float | GraderError] = []
        for term in self.terms:
            try:
                values.append(term(episode))
            except GraderError as error:
                values.append(error)
        return values

    def rewarded(self, slot: int, number: int, played: Played, terms: Terms) -> Rewarded:
        """The sample with its terms; a failure is logged and counted, NaN and infinity end the stage."""
        name = self.name(number, played)
        try:
            found = terms()
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        values: list[float] = []
        for term, value in zip(self.terms, found, strict=True):
            if isinstance(value, GraderError):
                LOGGER.warning("%s: %s; the sample is left out of training", name, value)
                values.append(math.nan)
            else:
                values.append(finite(value, f"{name}: the reward term {term.name}"))
        if played.error or any(isinstance(value, GraderError) for value in found):
            return Rewarded(slot, played, self.limit(played), values, None)
        reward = sum(term.weight * value for term, value in zip(self.terms, values, strict=True))
        finite(reward, f"{name}: the weighted sum of the reward terms")
        return Rewarded(slot, played, self.limit(played), values, reward)


class Player:
    """Plays a rank's share of a step."""

    def __init__(
        self,
        config: StageConfig,
        engine: Engine,
        tokenizer: PreTrainedTokenizerFast,
        environment: BaseEnvironment,
        job: Job,
    ) -> None:
        """`engine` is given new weights by whoever trains them."""
        self.seed, self.config = config.seed, config.rl
        self.engine, self.tokenizer, self.environment, self.job = engine, tokenizer, environment, job
        self.judge = Judge(config.rl, environment, engine.context)

    def play(self, step: int, tasks: Sequence[Task]) -> Trajectories:
        """All samples of `tasks`, sample after sample, task after task. Slow terms are computed beside the engine.

        Raises ValueError that names the row: for one that is too long, and for a reward that is no finite number.
        """
        count = self.config.samples_per_prompt
        starts: list[Start] = []
        for task in tasks:
            prompt = encode_first(self.engine, self.tokenizer, task.row["id"], task.row["prompt"])
            seeds = [request_seed(self.seed, step, task.slot, sample) for sample in range(count)]
            starts += [Start(task.row, prompt, seed) for seed in seeds]
        terms: dict[int, Terms] = {}
        with threads() as pool:

            def begin(place: int, played: Played) -> None:
                terms[place] = later(pool if self.judge.slow else None, self.judge.terms_of, played)

            played = play_episodes(
                self.engine,
                self.tokenizer,
                self.environment,
                starts,
                self.config.sampling,
                on_progress=lambda ended: self.job.beat(f"step {step}: {ended} of {len(starts)} samples played"),
                on_end=begin,
            )
            samples = [
                self._rewarded(tasks[place // count].slot, place % count, episode, terms[place])
                for place, episode in enumerate(played)
            ]
        return tabulate(samples, len(self.judge.terms))

    def _rewarded(self, slot: int, number: int, played: Played, terms: Terms) -> Rewarded:
        name = self.judge.name(number, played)
        self.job.beat(f"{name}: the terms of the reward")
        return self.judge.rewarded(slot, number, played, terms)


def finite(value: float, what: str) -> float:
    """`value`; ValueError that says `what` when it is not finite as the float32 that it is stored in."""
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise ValueError(f"{what} is {value}, but a reward must be a finite number; mend the term or its weight")
    return value


def tabulate(samples: Sequence[Rewarded], num_terms: int) -> Trajectories:
    """One sequence for each sample: the prompt, and then turns of the policy and observations between them."""
    played = [sample.played for sample in samples]
    # The parts of all sequences in their order, those of the policy marked.
    parts = [part for episode in played for part in _parts(episode)]
    sizes = np.array([len(tokens) for tokens, _ in parts], np.int64)
    mask = np.repeat(np.array([chosen for _, chosen in parts], np.bool_), sizes)
    completions = [completion for episode in played for completion in episode.completions]
    logprobs, versions = np.zeros(len(mask), np.float32), np.full(len(mask), -1, np.int32)
    logprobs[mask] = _joined([completion.logprobs for completion in completions], np.float32)
    versions[mask] = _joined([completion.versions for completion in completions], np.int32)
    lengths = [sum(len(tokens) for tokens, _ in _parts(episode)) for episode in played]
    return Trajectories(
        tokens=_joined([np.array(tokens, np.int32) for tokens, _ in parts], np.int32),
        mask=mask,
        logprobs=logprobs,
        versions=versions,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        prompt_lengths=np.array([len(episode.start.prompt) for episode in played], np.int32),
        terms=np.array([sample.terms for sample in samples], np.float32).reshape(-1, num_terms),
        limits=np.array([sample.limit for sample in samples], np.int32),
        rewards=np.array([sample.reward or 0.0 for sample in samples], np.float32),
        finished=np.array([episode.finished for episode in played], np.bool_),
        graded=np.array([sample.reward is not None for sample in samples], np.bool_),
        groups=np.array([sample.slot for sample in samples], np.int32),
        seeds=np.array([episode.start.seed for episode in played], np.int64),
        prompt_ids=tuple(str(episode.start.task["id"]) for episode in played),
    )


def _parts(played: Played) -> list[tuple[Sequence[int], bool]]:
    """(Ids, whether the policy chose them), in the order in which they were said."""
    before = [played.start.prompt, *played.observations]
    return [
        part
        for seen, completion in zip(before, played.completions, strict=True)
        for part in ((seen, False), (completion.tokens, True))
    ]


def _joined(arrays: Sequence[npt.NDArray[Number]], dtype: type[Number]) -> npt.NDArray[Number]:
    return np.concatenate([np.zeros(0, dtype), *arrays])
