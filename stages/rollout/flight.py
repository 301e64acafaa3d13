"""One episode in flight: what the policy and its environment have said to each other, and whose turn it is."""

import copy
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from data.tokenizer import decode, encode_observation, end_token
from stages.environments.base import BaseEnvironment, GraderError, Task
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Request
from stages.rollout.stops import StopWatch

Outcome = tuple[str, float, bool, dict[str, Any]] | None
"""What `BaseEnvironment.step` returns; None for a turn that was cut."""


class AnotherAnswer(ValueError):
    """The environment says something else than what another player has heard: the episode has to begin anew."""


@dataclass(frozen=True)
class Start:
    """An episode to be played."""

    task: Task
    """A row."""
    prompt: Sequence[int]
    """Ids of what the policy sees first: the row's prompt, or a perturbed copy of it."""
    seed: int


@dataclass(frozen=True)
class Begun:
    """What another player has heard of an episode."""

    completions: list[Completion]
    """Turn by turn; the last has `cancelled` as its reason: it may be whole or interrupted, the others are whole."""
    observations: list[list[int]]
    """Ids of what the environment said between them."""


@dataclass
class Played:
    """An episode that was played."""

    start: Start
    observations: list[list[int]] = field(default_factory=list[list[int]])
    """Ids of what the environment said before each turn but the first."""
    completions: list[Completion] = field(default_factory=list[Completion])
    """What the policy said, turn by turn, as sampled."""
    said: list[str] = field(default_factory=list[str])
    """The same as text, without special tokens."""
    answered: list[str] = field(default_factory=list[str])
    """`observations` as text."""
    reward: float = 0.0
    """The environment's, the sum over the turns; a turn that was cut is not put to it."""
    parsed: bool = False
    """Whether the environment found an answer in the last turn."""
    finished: bool = False
    """Whether the last turn ended by itself and the environment was done."""
    error: str = ""
    """Of the grader, where it failed: then the reward means nothing."""

    @property
    def is_interrupted(self) -> bool:
        """Whether the last turn is to be gone on with."""
        return bool(self.completions) and self.completions[-1].reason == "cancelled"

    @property
    def tokens(self) -> list[int]:
        """All that the policy said, end to end."""
        return [token for completion in self.completions for token in completion.tokens]

    @property
    def text(self) -> str:
        """The episode after its prompt, for a person to read: a line for each turn and each observation."""
        return "\n".join([self.said[0], *(f"{o}\n{s}" for o, s in zip(self.answered, self.said[1:], strict=True))])


class Flight:
    """One episode in flight, with an environment of its own. A turn is heard, graded, and its outcome taken."""

    def __init__(
        self, start: Start, environment: BaseEnvironment, tokenizer: PreTrainedTokenizerFast, context: int
    ) -> None:
        # A shallow copy: data that the environment holds is shared, and `reset` sets what a turn changes.
        self.environment, self.tokenizer, self.context = copy.copy(environment), tokenizer, context
        self.prompt, self.turn = list(start.prompt), 0
        self.played = Played(start)
        self.begun: deque[Completion] = deque()
        """Turns that another player has heard, still to be put to the environment; the last may be interrupted."""
        self.seen: deque[list[int]] = deque()
        """What the environment said between those."""
        self.beginning: Completion | None = None
        """Of the turn that is under way, what another player has heard."""
        self.sampling = SamplingConfig()
        self.budget: int | None = None
        """Tokens that may still be generated here; None: all."""
        self.environment.reset(task=start.task)

    def go_on_with(self, begun: Begun) -> None:
        """Begin with what another player has heard."""
        self.begun, self.seen = deque(begun.completions), deque(begun.observations)

    def replay(self) -> Completion | None:
        """The next turn, if another player has heard all of it. Raises AnotherAnswer."""
        if self.begun and self.played.observations and self.seen.popleft() != self.played.observations[-1]:
            name = self.played.start.task["id"]
            raise AnotherAnswer(f"row {name}: {self.environment.name} answers the same turn in another way than before")
        if self.begun and self.begun[0].reason != "cancelled":
            return self.begun.popleft()
        self.beginning = self.begun.popleft() if self.begun else None
        if self.beginning is None:
            return None
        sampling = self.sampling
        tokens, watch = self.beginning.tokens, StopWatch(sampling.stop, self.tokenizer)
        watch.read(tokens)
        ends, full = {end_token(self.tokenizer), *sampling.stop_tokens}, len(tokens) >= self._room()
        if not (full or watch.found or (tokens and tokens[-1] in ends)):
            return None
        whole = replace(self.beginning, reason="stop" if watch.found or tokens[-1] in ends else "length")
        self.beginning = None
        return whole

    def unplayed(self) -> Played:
        """What there is of it, with what has not been replayed."""
        self.played.completions += self.begun
        self.played.observations += self.seen
        return self.played

    def request(self, session: int | None) -> Request:
        """What the engine is asked for: a turn, or the rest of one."""
        seed, said = turn_seed(self.played.start.seed, self.turn), self.beginning.tokens if self.beginning else []
        limit = None if self.budget is None and not said else self._room() - len(said)
        if limit is not None and self.budget is not None:
            limit = max(1, min(limit, self.budget))
        # The rest has other random numbers than those that its beginning was drawn with.
        return Request([*self.prompt, *said], turn_seed(seed, len(said)), limit, session)

    def _room(self) -> int:
        """Tokens that the turn may have."""
        return min(self.sampling.max_new_tokens, self.context - len(self.prompt))

    def hear(self, completion: Completion) -> str | None:
        """Note a turn of the policy; its text, None where it was cut."""
        if self.budget is not None:
            self.budget -= len(completion.tokens)
        if self.beginning is not None:
            completion = joined(self.beginning, completion, self.sampling, self.tokenizer)
            self.beginning = None
        if self.budget is not None and completion.reason == "length" and len(completion.tokens) < self._room():
            completion = replace(completion, reason="cancelled")
        said = decode(self.tokenizer, completion.tokens)
        self.played.completions.append(completion)
        self.played.said.append(said)
        self.played.parsed = False
        return said if completion.finished else None

    def grade(self, said: str | None) -> Outcome:
        """What the environment says to a turn. It may take long, and be called in another thread."""
        return None if said is None else self.environment.step(said)

    def take(self, outcome: Callable[[], Outcome]) -> bool:
        """Note what `grade` returns or raises; whether there is another turn, after `prompt`."""
        played = self.played
        try:
            graded = outcome()
        except GraderError as error:
            played.error, played.finished = str(error) or "the grader failed", True
            return False
        except ValueError as error:
            raise ValueError(f"row {played.start.task['id']}: {error}") from error
        if graded is None:
            return False
        observation, reward, done, info = graded
        played.reward += reward
        played.parsed = bool(info["parsed"])
        self.turn += 1
        if done or self.turn == self.environment.max_turns:
            played.finished = done
            return False
        return self._go_on(observation, played.completions[-1].tokens)

    def _go_on(self, observation: str, said: list[int]) -> bool:
        """Put the observation behind what was said; False when the context has no room for another turn."""
        try:
            between = encode_observation(self.tokenizer, observation, said)
        except ValueError as error:
            name = self.played.start.task["id"]
            raise ValueError(f"row {name}: {self.environment.name} answers {observation!r}: {error}") from error
        if len(self.prompt) + len(said) + len(between) >= self.context:
            return False
        self.prompt = [*self.prompt, *said, *between]
        self.played.observations.append(between)
        self.played.answered.append(observation)
        return True


def joined(
    first: Completion, second: Completion, sampling: SamplingConfig, tokenizer: PreTrainedTokenizerFast
) -> Completion:
    """A turn that was interrupted and its rest; it ends where a stop string ends that lies in both."""
    tokens, reason, count = [*first.tokens, *second.tokens], second.reason, len(first.tokens) + len(second.tokens)
    if sampling.stop:
        watch = StopWatch(sampling.stop, tokenizer)
        watch.read(tokens)
        count, reason = watch.count, "stop" if watch.found else reason
    logprobs = np.concatenate([first.logprobs, second.logprobs])[:count]
    versions = np.concatenate([first.versions, second.versions])[:count]
    return Completion(tokens[:count], logprobs, versions, reason)


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a turn's request: the episode's own for the first, 63 bits that follow from it for the others."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{turn}".encode()).digest()[:8]) >> 1 if turn else seed
