"""Episodes: policy and environment in turns, many side by side through one engine, without a barrier between turns.

It draws no random numbers, and which episode's turn ends first changes no other episode.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from transformers import PreTrainedTokenizerFast

from data.tokenizer import encode_prompt
from stages.environments.base import BaseEnvironment
from stages.environments.processes import threads
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Engine
from stages.rollout.flight import Begun, Flight, Outcome, Played, Start

STEPS_OF_GRADING = 8
"""Steps of the engine after which a turn that a slow environment grades is answered. A fixed number: when a request is
added decides which others it is computed with, and so its rounding, which may not depend on how fast a grader was."""


class Graded(NamedTuple):
    """A turn that was put to the environment."""

    by: float
    """Step of the engine by which it is taken, where that is to be the same each time."""
    key: int
    flight: Flight
    outcome: Callable[[], Outcome]
    is_ready: Callable[[], bool]


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
        self.seconds = 0.0
        """In which the engine generated."""
        self.answering = 0.0
        """Seconds in which it waited for the environment's answers."""
        self.ended = 0
        """Episodes that were played to their end."""

    def __len__(self) -> int:
        """Episodes that have not ended."""
        return len(self._flights)

    @property
    def in_flight(self) -> int:
        """Those whose turn it is to be generated; of the others the environment is asked."""
        return len(self._in_flight)

    def add(self, key: int, start: Start, begun: Begun | None = None) -> None:
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
        before, began = self.engine.progress, time.perf_counter()
        if self._in_flight:
            completions = self.engine.step()
            self.seconds += time.perf_counter() - began
            self._hear(completions)
        if self.engine.progress != before:
            self._on_progress()
        while (due := self._due()) is not None:
            if self._flights.get(due.key) is not due.flight:
                continue  # it was halted
            ended = self._take(due.key, due.flight, due.outcome)
            if ended is not None:
                self._forget(due.key)
                self.ended += isinstance(ended, Played) and not ended.is_interrupted
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

    def _grade(self, key: int, flight: Flight, said: str | None) -> None:
        future = self._pool.submit(flight.grade, said) if self._pool else None
        outcome, is_ready = (future.result, future.done) if future else (partial(flight.grade, said), lambda: True)
        self._graded.append(Graded(self._steps + self._wait, key, flight, outcome, is_ready))

    def _take(self, key: int, flight: Flight, outcome: Callable[[], Outcome]) -> Played | ValueError | None:
        """What has become of the episode, if it has ended."""
        began = time.perf_counter()
        try:
            goes_on = flight.take(outcome)
            self.answering += time.perf_counter() - began
            if not goes_on:
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

    def _due(self) -> Graded | None:
        """A turn whose outcome is to be taken now."""
        if self._punctual:
            due = self._graded and (self._graded[0].by <= self._steps or not self._in_flight)
            return self._graded.popleft() if due else None
        for place, graded in enumerate(self._graded):
            if graded.is_ready():
                del self._graded[place]
                return graded
        return None

    def _forget(self, key: int) -> Flight:
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
