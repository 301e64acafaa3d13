"""What an actor has done, as the coordinator is told."""

import time

import torch

from stages.rl.messages import Rates
from stages.rollout.engine import Engine
from stages.rollout.episodes import Episodes


class Meter:
    """Measures between two reports: tokens as the engine makes them, and the time in which it does."""

    def __init__(self, engine: Engine, episodes: Episodes, slots: int) -> None:
        """`slots` are the sequences that the engine has room for."""
        self._engine, self._playing, self._slots = engine, episodes, slots
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
