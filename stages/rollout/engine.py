"""What every rollout engine is: requests go in at any time, completions come out as they end.

An engine knows token ids only: no rewards, no environment. Text it knows only where stop strings end a completion.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from stages.rollout.config import SamplingConfig

if TYPE_CHECKING:
    from torch import Tensor

Reason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Request:
    """A prompt to complete."""

    prompt: Sequence[int]
    seed: int
    """Decides every random number of this completion; not negative."""
    max_new_tokens: int | None = None
    """A limit for this request; None takes the sampling's."""
    session: int | None = None
    """Turns of one episode share a session: the prompt of a turn begins with prompt and completion of the turn before,
    whose keys and values the engine keeps until `release` (or until it needs the room)."""


@dataclass(frozen=True)
class Completion:
    """What the policy answered."""

    tokens: list[int]
    """With the end token, or the tokens of the stop string, where one was emitted."""
    logprobs: npt.NDArray[np.float32]
    """[tokens], in nats, under the tempered distribution (greedy: the untempered)."""
    versions: npt.NDArray[np.int32]
    """[tokens], version of the weights that made each."""
    reason: Reason
    """stop: the end token, a stop token or a stop string came; length: there was no more room; cancelled: `cancel`."""

    @property
    def finished(self) -> bool:
        """Whether it ended by itself."""
        return self.reason == "stop"


class Engine(Protocol):
    """A rollout engine. Not thread-safe."""

    version: int
    """Of the weights that it has."""
    context: int
    """Most tokens of prompt and completion."""
    progress: int
    """Tokens that were generated, as they come: who waits for completions sees by it that the engine does something."""

    def start(self, sampling: SamplingConfig, *, greedy: bool = False, noise: float = 0.0) -> None:
        """How all requests from now on are sampled. Only while none is in flight.

        `greedy` overrides the temperature; with chance `noise` a token is replaced by a random ordinary one.
        """
        ...

    def add(self, key: int, request: Request) -> None:
        """Take a request; its completion will come under `key`, which no other request in flight has.

        Raises ValueError for a prompt that is empty or leaves no room in the context.
        """
        ...

    def step(self) -> list[tuple[int, Completion]]:
        """Generate for a while (at most some tokens of each request), and give what has ended since the last call."""
        ...

    def cancel(self, keys: Iterable[int]) -> None:
        """End requests as they are; the next `step` gives what they have. Keys that have ended are passed over."""
        ...

    def release(self, sessions: Iterable[int]) -> None:
        """These sessions have no more turns."""
        ...

    def update(self, weights: "Iterable[tuple[str, Tensor]] | None", version: int) -> None:
        """Take weights, by their Hugging Face names, tied ones once; None where they are the policy's own.

        Requests in flight go on with them, and their versions say from which token on. Raises ValueError when
        `weights` lacks a parameter, or has one of another name or shape.
        """
        ...

    def sleep(self) -> None:
        """Give up what memory can be given up until `wake`. Only while no request is in flight."""
        ...

    def wake(self) -> None:
        """Be ready again; `update` follows, since the weights may be gone."""
        ...

    def close(self) -> None:
        """End all that the engine has started."""
        ...


def room(key: int, request: Request, sampling: SamplingConfig, context: int) -> int:
    """How many tokens the completion of `request` may have. Raises ValueError when there is room for none."""
    length = len(request.prompt)
    if not 0 < length < context:
        raise ValueError(
            f"request {key}: the prompt has {length} tokens, but the model's context is {context}; "
            "it must have at least one and leave room for an answer"
        )
    return min(request.max_new_tokens or sampling.max_new_tokens, context - length)


def generate(
    engine: Engine,
    requests: Sequence[Request],
    sampling: SamplingConfig,
    *,
    greedy: bool = False,
    noise: float = 0.0,
    on_progress: Callable[[int], None] | None = None,
) -> list[Completion]:
    """Complete all requests, in their order. `on_progress` is told how many have ended, when tokens were generated.

    Raises the ValueError of `add`, with none left in flight.
    """
    engine.start(sampling, greedy=greedy, noise=noise)
    for key, request in enumerate(requests):
        try:
            engine.add(key, request)
        except ValueError:
            cancel_all(engine, range(key))
            raise
    completions: dict[int, Completion] = {}
    while len(completions) < len(requests):
        before = engine.progress
        completions.update(engine.step())
        if on_progress and engine.progress != before:
            on_progress(len(completions))
    return [completions[key] for key in range(len(requests))]


def cancel_all(engine: Engine, keys: Iterable[int]) -> None:
    """Cancel these requests, which are in flight, and wait until they are gone."""
    left = set(keys)
    engine.cancel(left)
    while left:
        left -= {key for key, _ in engine.step()}
