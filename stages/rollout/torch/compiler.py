"""The decode step through torch.compile."""

import logging
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

import torch

from stages.rollout.torch.forward import Forward

LOGGER = logging.getLogger(__name__)

SHAPES = 64
"""Graphs that torch.compile may make: more than there are powers of two below any context."""

Slow = Callable[[str], AbstractContextManager[object]]
"""Says of what a block does that it may take long; `Job.slow` is one."""


class Compiler:
    """Makes one graph for each number of rows and width of the cache.

    They are kept where torch keeps them: in a folder of this user on the node's own disk, which the ranks of the node
    share and the next job finds again.
    """

    def __init__(self, slow: Slow) -> None:
        """Each compilation goes on inside `slow`, and its time is in the log."""
        self._slow, self._seen = slow, set[tuple[int, ...]]()
        torch._dynamo.config.cache_size_limit = SHAPES  # pyright: ignore[reportPrivateUsage]

    def forward(self, forward: Forward) -> Forward:
        """`forward` with a compiled decode step."""
        return forward._replace(decode=torch.compile(forward.hidden_states, dynamic=False))

    @contextmanager
    def step(self, rows: int, width: int, positions: int) -> Generator[None]:
        """Around decode steps of so many rows that look at `width` of the cache's `positions`."""
        shape = (rows, width, positions)
        if shape in self._seen:
            yield
            return
        what, started = f"compiling the decode step of {rows} rows, {width} positions", time.monotonic()
        with self._slow(what):
            yield
        self._seen.add(shape)
        LOGGER.info("%s took %.1f s", what, time.monotonic() - started)
