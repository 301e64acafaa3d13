"""How far a stage is: one small file that the stage writes and that the terminal and `qianka status` read."""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = "progress.json"


@dataclass
class Progress:
    """`done` of `total` `unit`s, since `started` (of this process, at `first` units)."""

    folder: Path
    total: int
    unit: str
    done: int = 0
    first: int = 0
    message: str = ""
    started: float = field(default_factory=time.time)
    period_seconds: float = 0.5
    _written: float = 0.0

    def update(self, done: int, message: str = "") -> None:
        """Note that `done` units are finished. Written at most every `period_seconds`, and always at the end."""
        self.done, self.message = done, message
        if done >= self.total or time.time() - self._written >= self.period_seconds:
            self.write()

    def write(self) -> None:
        """Replace the file in one step. Not fsynced: a lost progress file costs nothing."""
        record = {k: v for k, v in asdict(self).items() if k not in ("folder", "period_seconds", "_written")}
        record["time"] = self._written = time.time()
        aside = self.folder / f"{FILE}.{os.getpid()}"
        aside.write_text(json.dumps(record))
        aside.replace(self.folder / FILE)


def read_progress(folder: Path) -> dict[str, int | float | str] | None:
    """The last record of the stage in `folder`, or None when there is none yet, or a lost node left it empty."""
    try:
        return json.loads((folder / FILE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
