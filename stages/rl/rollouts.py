"""Playing prompts: the engine completes, the environment grades, and the result is a table of trajectories."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from data.job import Job
from data.rows import Row
from data.tokenizer import decode, encode_prompt
from data.trajectories import Trajectories
from stages.environments.base import BaseEnvironment, GraderError
from stages.rl.config import StageConfig
from stages.rollout.engine import Completion, Engine, Request, generate

LOGGER = logging.getLogger(__name__)


class Task(NamedTuple):
    """A prompt of a step."""

    slot: int
    """Its place among the step's prompts, over all ranks."""
    row: Row


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

    def play(self, step: int, tasks: Sequence[Task]) -> Trajectories:
        """All samples of `tasks`, sample after sample, task after task. ValueError names a row that is too long."""
        count = self.config.samples_per_prompt
        prompts = [self._prompt(task.row) for task in tasks]
        samples = [
            (task, prompt, sample) for task, prompt in zip(tasks, prompts, strict=True) for sample in range(count)
        ]
        seeds = [request_seed(self.seed, step, task.slot, sample) for task, _, sample in samples]
        requests = [Request(prompt, seed) for (_, prompt, _), seed in zip(samples, seeds, strict=True)]
        completions = generate(self.engine, requests, self.config.sampling, on_progress=self._beat(step, len(requests)))
        rewards = [self._reward(task.row, answer) for (task, _, _), answer in zip(samples, completions, strict=True)]
        limit = self.config.sampling.max_new_tokens
        return tabulate([task for task, _, _ in samples], requests, completions, rewards, limit)

    def _prompt(self, row: Row) -> list[int]:
        tokens = encode_prompt(self.tokenizer, self.environment.reset(task=row)[0])
        context = self.engine.context
        if len(tokens) >= context:
            raise ValueError(
                f"row {row['id']}: its prompt {row['prompt'][:60]!r} has {len(tokens)} tokens, and the model's context "
                f"of {context} leaves no room for an answer; leave the row out, or take a model with a longer context"
            )
        return tokens

    def _beat(self, step: int, total: int) -> Callable[[int], None]:
        return lambda ended: self.job.beat(f"step {step}: {ended} of {total} samples played")

    def _reward(self, row: Row, completion: Completion) -> float | None:
        """The environment's reward, 0 for a completion that was cut, None when the grader failed."""
        self.job.beat(f"grading {row['id']}")
        self.environment.reset(task=row)
        try:
            reward = self.environment.step(decode(self.tokenizer, completion.tokens))[1]
        except GraderError as error:
            LOGGER.warning("row %s: %s; the sample is left out of training", row["id"], error)
            return None
        return reward * completion.finished


def request_seed(seed: int, step: int, slot: int, sample: int) -> int:
    """A seed of 63 bits that depends on nothing but these four, so not on how many ranks share the work."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}/{slot}/{sample}".encode()).digest()[:8]) >> 1


def tabulate(
    tasks: Sequence[Task],
    requests: Sequence[Request],
    completions: Sequence[Completion],
    rewards: Sequence[float | None],
    limit: int,
) -> Trajectories:
    """One sequence for each of the equally long arguments; a reward of None is a sample that was not graded."""
    prompt_lengths = np.array([len(request.prompt) for request in requests], np.int32)
    sizes = np.array([len(completion.tokens) for completion in completions], np.int64)
    offsets = np.concatenate([[0], np.cumsum(prompt_lengths + sizes)]).astype(np.int64)
    mask = np.arange(offsets[-1]) >= np.repeat(offsets[:-1] + prompt_lengths, prompt_lengths + sizes)
    tokens, logprobs = np.zeros(len(mask), np.int32), np.zeros(len(mask), np.float32)
    tokens[~mask] = [token for request in requests for token in request.prompt]
    tokens[mask] = [token for completion in completions for token in completion.tokens]
    versions = np.full(len(mask), -1, np.int32)
    versions[mask] = np.concatenate([np.zeros(0, np.int32), *(completion.versions for completion in completions)])
    logprobs[mask] = np.concatenate([np.zeros(0, np.float32), *(completion.logprobs for completion in completions)])
    return Trajectories(
        tokens=tokens,
        mask=mask,
        logprobs=logprobs,
        versions=versions,
        offsets=offsets,
        prompt_lengths=prompt_lengths,
        terms=np.array([[reward or 0.0] for reward in rewards], np.float32).reshape(-1, 1),
        limits=np.array([limit for _ in rewards], np.int32),
        rewards=np.array([reward or 0.0 for reward in rewards], np.float32),
        finished=np.array([completion.finished for completion in completions], np.bool_),
        graded=np.array([reward is not None for reward in rewards], np.bool_),
        groups=np.array([task.slot for task in tasks], np.int32),
        seeds=np.array([request.seed for request in requests], np.int64),
        prompt_ids=tuple(task.row["id"] for task in tasks),
    )
