"""What an actor has done, as the coordinator is told."""

import time

import torch

from stages.rl.messages import Rates
from stages.rollout.engine import Engine
from stages.rollout.episodes import Episodes

SLOW_SECONDS, SLOW_SHARE = 10.0, 0.25
"""That an engine has waited for its environment, and as a share of the time in which it generated, until it is said."""


class Meter:
    """Measures between two reports: tokens as the engine makes them, and the time in which it does."""

    def __init__(self, engine: Engine, episodes: Episodes, slots: int) -> None:
        """`slots` are the sequences that the engine has room for."""
        self._engine, self._playing, self._slots = engine, episodes, slots
        self._warned = False
        self._begin()

    def report(self) -> Rates:
        """What was done since the last report."""
        rates = Rates(
            seconds=self.age,
            tokens=self._engine.progress - self._tokens,
            episodes=self._playing.ended - self._ended,
            busy=self._playing.seconds - self._busy,
            device=utilisation(),
            version=self._engine.version,
            slots=self._slots,
            in_flight=self._playing.in_flight,
        )
        self._begin()
        return rates

    def warning(self) -> str:
        """What is to be said, once, of an environment for which the engine waits; "" where it does not."""
        played, environment = self._playing, self._playing.environment
        if self._warned or played.answering < max(SLOW_SECONDS, SLOW_SHARE * played.seconds):
            return ""
        self._warned = True
        return (
            f"the engine has waited {played.answering:.0f} s for the environment {environment.name}, and generated for "
            f"{played.seconds:.0f} s: an environment with `cpu_seconds` answers beside the engine"
        )

    @property
    def age(self) -> float:
        """Seconds since the last report."""
        return time.monotonic() - self._since

    def _begin(self) -> None:
        self._since, self._tokens, self._busy = time.monotonic(), self._engine.progress, self._playing.seconds
        self._ended = self._playing.ended


def utilisation() -> float | None:
    """Of this process's card, by its driver, 0 to 1; None where there is no card or nobody measures it."""
    if not torch.cuda.is_available():
        return None
    try:
        return torch.cuda.utilization() / 100
    except (ModuleNotFoundError, RuntimeError):  # no tool of the vendor's that torch knows
        return None
