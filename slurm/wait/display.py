"""What a person sees while a stage runs: its log, and a progress bar or, without a terminal, a line now and then."""

import time
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

LINE_SECONDS = 10.0
"""Between two lines of progress where the output is no terminal."""
MESSAGE = "{task.fields[message]}"
Reading = dict[str, int | float | str]
"""A record of `data.progress`."""


def rate(reading: Reading) -> float:
    """Units a second since the process started, 0 while there is nothing to go by."""
    seconds = float(reading["time"]) - float(reading["started"])
    done = float(reading["done"]) - float(reading["first"])
    return done / seconds if seconds > 0 and done > 0 else 0.0


def seconds_left(reading: Reading) -> float | None:
    """Time to the end at the present rate; None while that is not known."""
    pace = rate(reading)
    return (float(reading["total"]) - float(reading["done"])) / pace if pace else None


def clock(seconds: float | None) -> str:
    """`1:02:03`, `2:03`, or dashes when it is not known."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def pace(reading: Reading) -> str:
    """`12.5 steps/s, 1:02 left`."""
    value = rate(reading)
    digits = 0 if value >= 100 else 1 if value >= 1 else 3
    return f"{value:.{digits}f} {reading['unit']}/s, {clock(seconds_left(reading))} left"


class Terminal(Console):
    """A console whose reader may leave, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Say nothing more."""
        self.quiet = True


def progress_bar(console: Console) -> Progress:
    """Stage, bar, done of total, rate and time left; what the stage adds is cut where the line ends."""
    columns = [
        TextColumn(text, table_column=Column(no_wrap=True, overflow="ellipsis"))
        for text in ("{task.description}", "{task.completed:.0f}/{task.total:.0f}", "{task.fields[pace]}", MESSAGE)
    ]
    bar = BarColumn(20, table_column=Column(min_width=20))
    return Progress(columns[0], bar, *columns[1:], console=console, transient=True)


class Display:
    """Writes to the terminal, and the same lines to the stage's log file, for as long as anybody listens.

    A terminal that is gone stops the writing and nothing else: the one who waits must still cancel or publish.
    """

    def __init__(self, stage: str, log: Path | None) -> None:
        self.stage = stage
        self.console = Terminal(highlight=False, soft_wrap=True)
        self.file: TextIO | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            self.file = log.open("a")
        self.bar = progress_bar(self.console) if self.console.is_terminal else None
        self.task = self.bar.add_task(stage, pace="", message="", total=None, visible=False) if self.bar else None
        self.said = 0.0
        self.last: Reading | None = None

    def __enter__(self) -> "Display":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.bar:
                self.bar.stop()
        except OSError:
            self.console.quiet = True
        if self.file:
            self.file.close()

    def say(self, text: str) -> None:
        """One line, or several, about the stage."""
        self.write(f"{self.stage}: {text}\n")

    def write(self, text: str) -> None:
        """Text as it is, such as a piece of the job's log."""
        try:
            if self.file:
                self.file.write(text)
                self.file.flush()
        except OSError:
            self.file = None  # a full disk; the stage meets it too, and says so
        try:
            self.console.print(text, end="", markup=False)
        except OSError:
            self.console.quiet = True

    def progress(self, reading: Reading | None) -> None:
        """Show how far the stage is."""
        if reading is None or reading == self.last:
            return
        first, self.last = self.last is None, reading
        if self.bar and self.task is not None:
            done, total = float(reading["done"]), float(reading["total"])
            said = reading["message"]
            self.bar.update(self.task, completed=done, total=total, visible=True, pace=pace(reading), message=said)
        elif time.monotonic() - self.said >= LINE_SECONDS or first:
            self.said = time.monotonic()
            message = f", {reading['message']}" if reading["message"] else ""
            self.say(f"{reading['done']}/{reading['total']} {reading['unit']}, {pace(reading)}{message}")
