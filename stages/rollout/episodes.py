"""Episodes: policy and environment in turns, many side by side through one engine, without a barrier between turns.

It draws no random numbers, and which episode's turn ends first changes no other episode.
"""

import copy
import hashlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerFast

from data.tokenizer import decode, encode_observation, encode_prompt
from stages.environments.base import BaseEnvironment, GraderError, Task
from stages.environments.processes import later, threads
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Engine, Request, cancel_all

STEPS_OF_GRADING = 8
"""Steps of the engine after which a turn that a slow environment grades is answered. A fixed number: when a request is
added decides which others it is computed with, and so its rounding, which may not depend on how fast a grader was."""


@dataclass(frozen=True)
class Start:
    """An episode to be played."""

    task: Task
    """A row."""
    prompt: Sequence[int]
    """Ids of what the policy sees first: the row's prompt, or a perturbed copy of it."""
    seed: int


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
    def tokens(self) -> list[int]:
        """All that the policy said, end to end."""
        return [token for completion in self.completions for token in completion.tokens]

    @property
    def text(self) -> str:
        """The episode after its prompt, for a person to read: a line for each turn and each observation."""
        return "\n".join([self.said[0], *(f"{o}\n{s}" for o, s in zip(self.answered, self.said[1:], strict=True))])


def play_episodes(
    engine: Engine,
    tokenizer: PreTrainedTokenizerFast,
    environment: BaseEnvironment,
    starts: Sequence[Start],
    sampling: SamplingConfig,
    *,
    greedy: bool = False,
    noise: float = 0.0,
    on_progress: Callable[[int], None],
    on_end: Callable[[int, Played], None] | None = None,
) -> list[Played]:
    """Play all, in their order. A slow environment grades beside the engine, several turns at a time.

    `on_progress` is told how many have ended, whenever something was generated or graded: so not while an engine does
    nothing. `on_end` is told of an episode that has ended, and its place.

    An episode ends when the environment is done, when a turn is cut (by `max_new_tokens` or the context), when what
    the environment answers leaves no room in the context, or with the environment's `max_turns`. Raises ValueError
    that names the row, for what is no answer and for one that the tokenizer cannot take; then nothing is in flight.
    """
    engine.start(sampling, greedy=greedy, noise=noise)
    several, slow = environment.max_turns > 1, environment.cpu_seconds is not None
    wait = 0 if not slow else STEPS_OF_GRADING if several else math.inf
    flights = [Flight(start, environment, tokenizer, engine.context) for start in starts]
    in_flight: set[int] = set()
    graded: deque[tuple[float, int, Callable[[], Outcome]]] = deque()
    """(Step of the engine by which it is taken, key, what gives the outcome), the first to be taken first."""
    ended = steps = 0

    def add(key: int) -> None:
        flight, seed = flights[key], turn_seed(starts[key].seed, flights[key].turn)
        engine.add(key, Request(flight.prompt, seed, session=key if several else None))
        in_flight.add(key)

    with threads() as pool:
        try:
            for key in range(len(starts)):
                add(key)
            while ended < len(starts):
                before = engine.progress
                for key, completion in engine.step():
                    in_flight.remove(key)
                    said = flights[key].hear(completion)
                    graded.append((steps + wait, key, later(pool if slow else None, flights[key].grade, said)))
                if engine.progress != before:
                    on_progress(ended)
                while graded and (graded[0][0] <= steps or not in_flight):
                    _, key, outcome = graded.popleft()
                    if flights[key].take(outcome):
                        add(key)
                    else:
                        ended += 1
                        if several:
                            engine.release([key])
                        if on_end:
                            on_end(key, flights[key].played)
                    on_progress(ended)
                steps += 1
        except ValueError:
            cancel_all(engine, in_flight)
            raise
    return [flight.played for flight in flights]


def encode_first(engine: Engine, tokenizer: PreTrainedTokenizerFast, row: str, prompt: str) -> list[int]:
    """Ids of the prompt of a row with this id. ValueError names the row when the context leaves no room for a turn."""
    tokens, context = encode_prompt(tokenizer, prompt), engine.context
    if len(tokens) >= context:
        raise ValueError(
            f"row {row}: its prompt {prompt[:60]!r} has {len(tokens)} tokens, and the model's context of {context} "
            "leaves no room for an answer; leave the row out, or take a model with a longer context"
        )
    return tokens


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a turn's request: the episode's own for the first, 63 bits that follow from it for the others."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{turn}".encode()).digest()[:8]) >> 1 if turn else seed


Outcome = tuple[str, float, bool, dict[str, Any]] | None
"""What `BaseEnvironment.step` returns; None for a turn that was cut."""


class Flight:
    """One episode in flight, with an environment of its own. A turn is heard, graded, and its outcome taken."""

    def __init__(
        self, start: Start, environment: BaseEnvironment, tokenizer: PreTrainedTokenizerFast, context: int
    ) -> None:
        # A shallow copy: data that the environment holds is shared, and `reset` sets what a turn changes.
        self.environment, self.tokenizer, self.context = copy.copy(environment), tokenizer, context
        self.prompt, self.turn = list(start.prompt), 0
        self.played = Played(start)
        self.environment.reset(task=start.task)

    def hear(self, completion: Completion) -> str | None:
        """Note a turn of the policy; its text, None where it was cut."""
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
