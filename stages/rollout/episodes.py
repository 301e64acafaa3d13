"""Episodes: policy and environment in turns, many side by side through one engine, without a barrier between turns.

It draws no random numbers, and which episode's turn ends first changes no other episode.
"""

import copy
import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from data.tokenizer import decode, encode_observation, encode_prompt, end_token
from stages.environments.base import BaseEnvironment, GraderError, Task
from stages.environments.processes import threads
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Engine, Request
from stages.rollout.stops import StopWatch

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
    found: dict[int, Played] = {}
    with threads() as pool:
        episodes = Episodes(
            engine, tokenizer, environment, sampling, pool, on_progress=lambda: on_progress(len(found)), punctual=True
        )
        try:
            for key, start in enumerate(starts):
                episodes.add(key, start)
            while len(found) < len(starts):
                for key, played in episodes.step():
                    if isinstance(played, ValueError):
                        raise played
                    found[key] = played
                    if on_end:
                        on_end(key, played)
        except ValueError:
            episodes.halt(range(len(starts)))
            raise
    return [found[key] for key in range(len(starts))]


class Episodes:
    """Plays episodes that may be added at any time, in an engine that was started with the same `sampling`."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: PreTrainedTokenizerFast,
        environment: BaseEnvironment,
        sampling: SamplingConfig,
        pool: ThreadPoolExecutor,
        *,
        on_progress: Callable[[], None] = lambda: None,
        punctual: bool = False,
        budget: int | None = None,
    ) -> None:
        """A slow environment grades in `pool`, and `on_progress` is called when something was generated or graded.

        `punctual` takes a slow environment's answers after a fixed number of the engine's steps, waiting for them if
        need be: the same episodes have the same bits then. Otherwise they are taken when they are there.
        An episode ends interrupted after `budget` tokens that were generated here.
        """
        self.engine, self.tokenizer, self.environment, self.sampling = engine, tokenizer, environment, sampling
        self._on_progress, self._punctual, self._budget = on_progress, punctual, budget
        self._several, slow = environment.max_turns > 1, environment.cpu_seconds is not None
        self._pool = pool if slow else None
        self._wait = 0 if not slow else STEPS_OF_GRADING if self._several else math.inf
        self._flights: dict[int, Flight] = {}
        self._in_flight: set[int] = set()
        self._graded: deque[Graded] = deque()
        self._steps = 0

    def __len__(self) -> int:
        """Episodes that have not ended."""
        return len(self._flights)

    @property
    def in_flight(self) -> int:
        """Those whose turn it is to be generated; of the others the environment is asked."""
        return len(self._in_flight)

    def add(self, key: int, start: Start, begun: "Begun | None" = None) -> None:
        """Take an episode, or go on with what another player has begun; `key` is that of no other one.

        Raises the ValueError of `Engine.add`.
        """
        flight = Flight(start, self.environment, self.tokenizer, self.engine.context)
        flight.budget, flight.sampling = self._budget, self.sampling
        self._flights[key] = flight
        try:
            if begun:
                flight.go_on_with(begun)
            self._go_on(key)
        except ValueError:
            del self._flights[key]
            raise

    def step(self) -> Iterator[tuple[int, Played | ValueError]]:
        """Let the engine generate for a while; the episodes that have ended, or their errors, which name the row.

        To be exhausted before any other call.
        """
        before = self.engine.progress
        if self._in_flight:
            self._hear(self.engine.step())
        if self.engine.progress != before:
            self._on_progress()
        while (due := self._due()) is not None:
            if self._flights.get(due.key) is not due.flight:
                continue  # it was halted
            ended = self._take(due.key, due.flight, due.outcome)
            if ended is not None:
                self._forget(due.key)
                yield due.key, ended
            self._on_progress()
        self._steps += 1

    def halt(self, keys: Iterable[int]) -> dict[int, Played]:
        """Stop playing these, and give what there is of them. A turn that was interrupted has `cancelled` as reason."""
        stopped = set(keys) & self._flights.keys()
        left = stopped & self._in_flight
        self.engine.cancel(left)
        while left & self._in_flight:
            self._hear(self.engine.step(), stopped)
        return {key: self._forget(key).unplayed() for key in stopped}

    def _hear(self, completions: Sequence[tuple[int, Completion]], halting: Set[int] = frozenset()) -> None:
        for key, completion in completions:
            self._in_flight.remove(key)
            flight = self._flights[key]
            said = flight.hear(completion)
            if key not in halting:
                self._grade(key, flight, said)

    def _grade(self, key: int, flight: "Flight", said: str | None) -> None:
        future = self._pool.submit(flight.grade, said) if self._pool else None
        outcome, is_ready = (future.result, future.done) if future else (partial(flight.grade, said), lambda: True)
        self._graded.append(Graded(self._steps + self._wait, key, flight, outcome, is_ready))

    def _take(self, key: int, flight: "Flight", outcome: "Callable[[], Outcome]") -> Played | ValueError | None:
        """What has become of the episode, if it has ended."""
        try:
            if not flight.take(outcome):
                return flight.played
            self._go_on(key)
        except ValueError as error:
            return error
        return None

    def _go_on(self, key: int) -> None:
        """The next turn: of the policy, or one that another player has heard already."""
        flight = self._flights[key]
        heard = flight.replay()
        if heard is not None:
            self._grade(key, flight, flight.hear(heard))
            return
        self.engine.add(key, flight.request(key if self._several else None))
        self._in_flight.add(key)

    def _due(self) -> "Graded | None":
        """A turn whose outcome is to be taken now."""
        if self._punctual:
            due = self._graded and (self._graded[0].by <= self._steps or not self._in_flight)
            return self._graded.popleft() if due else None
        for place, graded in enumerate(self._graded):
            if graded.is_ready():
                del self._graded[place]
                return graded
        return None

    def _forget(self, key: int) -> "Flight":
        if self._several:
            self.engine.release([key])
        return self._flights.pop(key)


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


class Graded(NamedTuple):
    """A turn that was put to the environment."""

    by: float
    """Step of the engine by which it is taken, where that is to be the same each time."""
    key: int
    flight: "Flight"
    outcome: Callable[[], "Outcome"]
    is_ready: Callable[[], bool]


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
        self.sampling = SamplingConfig()
        self.budget: int | None = None
        """Tokens that may still be generated here; None: all."""
        """Of the turn that is under way, what another player has heard."""
        self.environment.reset(task=start.task)

    def go_on_with(self, begun: Begun) -> None:
        """Begin with what another player has heard."""
        self.begun, self.seen = deque(begun.completions), deque(begun.observations)

    def replay(self) -> Completion | None:
        """The next turn, if another player has heard all of it. ValueError when the environment says something new."""
        if self.begun and self.played.observations and self.seen.popleft() != self.played.observations[-1]:
            raise ValueError(
                f"row {self.played.start.task['id']}: {self.environment.name} answers the same turn in another way; "
                "an episode that was begun by another actor cannot go on"
            )
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
