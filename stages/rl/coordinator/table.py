"""The table of members, as a file: for `qianka status`, which asks nobody, and for the coordinator that comes next."""

import json
import os
from pathlib import Path

from pydantic import Field, ValidationError

from stages.rl.coordinator.members import MemberState, Scored
from stages.rl.messages import Message

NAME = "actors.json"
"""In the attempt's folder."""


class Table(Message):
    """Who takes part, who is gone and why, and what is told to nobody else."""

    written: float = 0.0
    """Unix time."""
    learners: str = ""
    """The start of the learners that its coordinator served."""
    since: float | None = None
    """Unix time of the first coordinator of that start: what has ailed members since then, the learners are told."""
    members: tuple[MemberState, ...] = ()
    gone: tuple[MemberState, ...] = ()
    """Those that went last, the newest last."""
    losses: dict[int, int] = Field(default_factory=dict[int, int])
    """How often each position was lost with its actor or failed: restored, for it bounds the tries of a prompt."""
    set_aside: dict[int, str] = Field(default_factory=dict[int, str])
    """Positions that were tried too often, and why, as long as the learner does not know."""
    reasons: dict[int, str] = Field(default_factory=dict[int, str])
    """The same of the last ones that it has set aside since."""
    positions_set_aside: int = 0
    """Positions that it has set aside in all: these, and those that were too old or whose prompts fail to be graded."""
    scores: tuple[Scored, ...] = ()


def write_table(folder: Path, table: Table) -> None:
    """In one step, for its owner alone."""
    aside = folder / f"{NAME}.{os.getpid()}"
    aside.unlink(missing_ok=True)
    aside.touch(mode=0o600)
    aside.write_text(table.model_dump_json(indent=1))
    aside.replace(folder / NAME)


def read_table(folder: Path) -> Table:
    """As it was last written; an empty one where there is none, or one of another version of the code."""
    try:
        return Table.model_validate(json.loads((folder / NAME).read_text()))
    except (FileNotFoundError, json.JSONDecodeError, ValidationError):
        return Table()
