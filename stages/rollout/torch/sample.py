"""What the host knows of a request, from `add` to its completion."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stages.rollout.engine import Completion, Reason, Request
from stages.rollout.stops import StopWatch


@dataclass(eq=False)
class Sample:
    """A request that waits or is being generated."""

    key: int
    request: Request
    prompt: tuple[int, ...]
    limit: int
    """New tokens at most."""
    session: int | None
    """Which keeps its keys and values when it has ended."""
    watch: StopWatch | None
    """Where there are stop strings."""
    row: int = -1
    stale: bool = False
    """Some of its keys and values are of older weights."""
    made: int = 0
    """New tokens, when the host looked last."""
    versions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """From which token on which version of the weights."""

    @property
    def length(self) -> int:
        """Tokens of prompt and completion so far."""
        return len(self.prompt) + self.made

    @property
    def longest(self) -> int:
        """Tokens of prompt and completion at most."""
        return len(self.prompt) + self.limit

    def completion(self, tokens: list[int], logprobs: npt.NDArray[np.float32], reason: Reason) -> Completion:
        """Of all its `tokens`."""
        versions = np.zeros(len(tokens), np.int32)
        for start, version in self.versions:
            versions[start:] = version
        return Completion(tokens, logprobs, versions, reason)


@dataclass(frozen=True)
class Kept:
    """Tokens whose keys and values lie in a row of the cache, such as those of an ended turn."""

    row: int
    tokens: tuple[int, ...]

    @property
    def length(self) -> int:
        """How many."""
        return len(self.tokens)

    def begins(self, prompt: tuple[int, ...]) -> bool:
        """Whether `prompt` goes on from here."""
        return self.length < len(prompt) and prompt[: self.length] == self.tokens
