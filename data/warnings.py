"""Warnings about how a stage learns: one small file that the stage writes, and that `qianka status` and others read."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FILE = "warnings.json"


class Warned(NamedTuple):
    """Trouble that began at a step."""

    step: int
    name: str
    """Of the rule, in words."""
    seen: str
    """What was seen, with its numbers."""
    advice: str
    """What to try."""

    def __str__(self) -> str:
        """One line for a person."""
        return f"step {self.step}: {self.name}: {self.seen}. {self.advice}"


def write_warnings(folder: Path, warnings: Sequence[Warned]) -> None:
    """Replace the file in one step. It follows from the stage's metrics, so a lost one is made again at the resume."""
    aside = folder / f"{FILE}.{os.getpid()}.writing"
    aside.write_text(json.dumps([warned._asdict() for warned in warnings], indent=1) + "\n")
    aside.replace(folder / FILE)


def read_warnings(folder: Path) -> list[Warned]:
    """Those of the stage in `folder`, oldest first; none when there is no file, or a lost node left it empty."""
    try:
        return [Warned(**record) for record in json.loads((folder / FILE).read_text())]
    except (FileNotFoundError, json.JSONDecodeError):
        return []
