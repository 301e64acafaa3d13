"""Tasks from the user's own file, graded against the answer that stands beside each prompt."""

import random
import re
from functools import cached_property
from pathlib import Path

from data.user_rows import UserRow, read_blocks, read_rows
from stages.environments.base import BaseEnvironment, Task, unknown_perturbation
from stages.environments.config import RowsConfig
from stages.environments.graders import GRADERS

PREVIEW_ROWS = 1000
"""`reset(seed)` draws from the first rows only, so that a large file is never held in memory. Stages replay tasks."""
MATH_CPU_SECONDS = 10
"""Of one grading; the first one imports sympy, two or three seconds."""
SPACE_CHANCE = 0.2
"""Chance that a space is doubled."""


class Rows(BaseEnvironment):
    """Poses the prompts of a file, and grades by `grader`."""

    name = "rows"
    perturbations = ("spaces", "case")
    modules = ("stages.environments.graders", "data.user_rows")
    cpu_seconds = None

    def __init__(self, config: RowsConfig) -> None:
        super().__init__()
        if not config.path:
            raise ValueError("environment.path is empty; name the .jsonl or .parquet file that holds your rows")
        self.config = config
        if config.grader == "math":
            self.cpu_seconds = MATH_CPU_SECONDS
            self.libraries = ("math-verify", "latex2sympy2_extended", "sympy")

    @cached_property
    def preview(self) -> list[UserRow]:
        """The first rows of the file."""
        return read_preview(self.config.path)

    @cached_property
    def harder_preview(self) -> list[UserRow]:
        """The first rows of the file of harder tasks."""
        if not self.config.harder_path:
            raise ValueError("there are no harder tasks: environment.harder_path is empty")
        return read_preview(self.config.harder_path)

    def draw(self, rng: random.Random, harder: bool) -> Task:
        """One of the first rows of the file."""
        row = rng.choice(self.harder_preview if harder else self.preview)
        return {"prompt": row.prompt, "answer": row.answer, "trace": row.trace, "level": row.level}

    def grade(self, task: Task, completion: str) -> tuple[float, bool]:
        """1 when the configured grader finds the answer in the completion."""
        correct, parsed = GRADERS[self.config.grader](task["answer"], completion)
        return float(correct), parsed

    def perturb(self, prompt: str, kind: str, rng: random.Random) -> str:
        """`spaces` doubles some spaces; `case` writes the prompt in lower case."""
        if kind == "spaces":
            return re.sub(" ", lambda _: "  " if rng.random() < SPACE_CHANCE else " ", prompt)
        if kind == "case":
            return prompt.lower()
        raise unknown_perturbation(self, kind)

    def reference(self, task: Task) -> str:
        """The answer, within a sentence where the grader looks for it in one."""
        answer = task["answer"]
        return {"exact": answer, "contains": f"It is {answer} .", "math": f"The answer is ${answer.strip('$')}$."}[
            self.config.grader
        ]

    def data_files(self) -> tuple[Path, ...]:
        """The user's files."""
        return tuple(Path(path) for path in (self.config.path, self.config.harder_path) if path)


def read_preview(path: str) -> list[UserRow]:
    """The first rows of a user's file."""
    return read_rows(read_blocks(Path(path), PREVIEW_ROWS, limit=PREVIEW_ROWS)[0])
