"""The time budget of a job: whether one more step, and the save after it, still fit before the allocation ends."""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from data.job import Job

Item = TypeVar("Item")

FILE = "budget.json"
RECENT_STEPS, RECENT_SAVES = 200, 5
"""The longest of so many is expected of the next; one slow moment of a file system is forgotten some day."""
MARGIN_SECONDS = 15.0
"""For what nobody measures: the agreement of the ranks, the requeue, clocks that differ."""
ASK_SECONDS = 300.0
"""How often the scheduler is asked for the end again, which an administrator may have moved."""
MAX_STARTS = 3
"""Starts in a row that used up their time and committed nothing, before that is an error."""


@dataclass
class Known:
    """What a later start has to know, in seconds and Unix times."""

    saves: list[float] = field(default_factory=list[float])
    longest_step: float = 0.0
    in_vain: int = 0
    """Starts in a row that used up their time and committed nothing."""
    began: float = 0.0
    ends_at: float = math.inf


class Budget:
    """Measures steps and saves, tells the watchdog of them, and says when to stop.

    Rank 0 alone looks at the clock, so all ranks have to agree on `must_stop` (`stages.trainer.device.any_rank`).
    """

    def __init__(self, job: Job, folder: Path, stage: str) -> None:
        """`folder` is the attempt's. ValueError when start after start runs out of time before it commits anything."""
        self.job, self.path, self.ends_at = job, folder / FILE, job.ends_at
        self.steps: deque[float] = deque(maxlen=RECENT_STEPS)
        self.began, self.asked = self._clock(), time.monotonic()
        self.saving, self.spent = 0.0, False
        self.known = _read(self.path)
        if self._counts:
            self._check(stage)

    @property
    def _counts(self) -> bool:
        return self.job.is_first and self.ends_at is not None

    def _clock(self) -> float:
        """Monotonic seconds in which the job was not suspended."""
        return time.monotonic() - self.job.pulse.paused

    def measured(self, steps: Iterable[Item], name: Callable[[Item], str] = "step {}".format) -> Generator[Item]:
        """Hand out `steps` one by one, and measure each until the next one without the saves in it.

        The first one, in which kernels are compiled and buffers made, tells nothing of the others.
        """
        self.began = self._clock()
        for index, step in enumerate(steps):
            self.job.beat(name(step))
            yield step
            if index == 0:
                self.job.pulse.has_started()
            else:
                self.steps.append(self._clock() - self.began - self.saving)
            self.began, self.saving = self._clock(), 0.0

    @contextmanager
    def save(self, step: int | str) -> Generator[None]:
        """Measure a save, and note that something is committed."""
        began, self.known.longest_step = self._clock(), self._step_seconds()
        self._write()
        with self.job.slow(f"save of {step}"):
            yield
        self.saving = self._clock() - began
        self.known.saves = [*self.known.saves, self.saving][-RECENT_SAVES:]
        self.known.in_vain, self.known.ends_at = 0, math.inf  # this start was not in vain
        self._write()

    def waited(self, seconds: float) -> None:
        """So long this step has waited for others, which tells nothing of how long the next one takes."""
        self.saving += seconds

    def must_stop(self) -> bool:
        """Whether this rank has to commit and end after the present step. Ask before a save, and again after it."""
        return self.is_spent() or self.job.stop_requested

    def is_spent(self) -> bool:
        """Whether the time left, which rank 0 knows, is too short for one more step and the save after it.

        A save that nobody has measured counts nothing; then the signal before the limit says when to stop.
        """
        if not self._counts:
            return False
        needed = self._step_seconds() + self._save_seconds() + MARGIN_SECONDS
        if self.seconds_left() < needed or time.monotonic() - self.asked > ASK_SECONDS:
            self.ends_at, self.asked = self.job.find_end() or self.ends_at, time.monotonic()
        self.spent = self.seconds_left() < needed
        return self.spent

    def seconds_left(self) -> float:
        """Seconds to the end of the allocation, infinity when nothing ends it."""
        return math.inf if self.ends_at is None else self.ends_at - time.time()

    def why(self) -> str:
        """Why `must_stop`, for the log."""
        if not self.spent:
            return "asked to stop"
        step, save = self._step_seconds(), self._save_seconds()
        return f"{self.seconds_left():.0f} s are left, a step takes up to {step:.1f} s and a save {save:.1f} s"

    def _step_seconds(self) -> float:
        return max([self._clock() - self.began - self.saving, *self.steps])

    def _save_seconds(self) -> float:
        return max(self.known.saves, default=0.0)

    def _check(self, stage: str) -> None:
        """Count the starts in vain. Whatever ended them, they can only have run out of time if that is over now."""
        known, given = self.known, self.seconds_left()
        if known.ends_at < time.time():
            known.in_vain += 1
            if known.in_vain >= MAX_STARTS:
                raise ValueError(_in_vain(known, stage, self._save_seconds()))
        known.began, known.ends_at = time.time(), time.time() + given
        self._write()

    def _write(self) -> None:
        """Replace the file in one step. Not fsynced: a lost one costs what it knows, and no work."""
        if self._counts:
            aside = self.path.with_name(f".{FILE}")
            aside.write_text(json.dumps(asdict(self.known)))
            aside.replace(self.path)


def _read(path: Path) -> Known:
    try:
        return Known(**json.loads(path.read_text()))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return Known()


def _in_vain(known: Known, stage: str, save: float) -> str:
    given = known.ends_at - known.began
    step = f"a step has taken up to {known.longest_step:.0f} s" if known.longest_step else "no step has ended"
    saves = f"a save up to {save:.0f} s" if save else "no save has ended"
    wanted = math.ceil(max(2 * given, 2 * (known.longest_step + save) + MARGIN_SECONDS) / 60)
    return (
        f"{stage}: {known.in_vain} starts in a row committed nothing, the last one in {given:.0f} s: {step}, {saves}; "
        f"give it more time, for example slurm.{stage}.minutes={wanted}"
    )
