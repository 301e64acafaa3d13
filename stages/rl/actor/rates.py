"""What an actor has done, as the coordinator is told."""

import time

import torch

from stages.rl.messages import Rates


class Meter:
    """Counts between two reports."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self.busy, self.tokens, self.episodes = 0.0, 0, 0

    def report(self, version: int, slots: int, in_flight: int) -> Rates:
        """What was counted since the last report."""
        now = time.monotonic()
        rates = Rates(
            seconds=now - self._since,
            tokens=self.tokens,
            episodes=self.episodes,
            busy=self.busy,
            device=utilisation(),
            version=version,
            slots=slots,
            in_flight=in_flight,
        )
        self._since = now
        self.busy, self.tokens, self.episodes = 0.0, 0, 0
        return rates

    @property
    def age(self) -> float:
        """Seconds since the last report."""
        return time.monotonic() - self._since


def utilisation() -> float | None:
    """Of this process's card, by its driver, 0 to 1; None where there is no card or nobody measures it."""
    if not torch.cuda.is_available():
        return None
    try:
        return torch.cuda.utilization() / 100
    except (ModuleNotFoundError, RuntimeError):  # no tool of the vendor's that torch knows
        return None
