"""The interface of every environment: it poses tasks, hears an answer, and gives a reward."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Task = Mapping[str, Any]
"""What an environment poses: prompt, answer, trace (a demonstration, perhaps a bad one) and level (how hard)."""


class GraderError(Exception):
    """The grader itself failed on a task. It is not a wrong answer: callers count it apart."""


class BaseEnvironment(ABC):
    """A single-turn environment. It holds one task at a time, and draws no random numbers but those of its seed.

    It never touches torch, the global random state, or the hash of a string, so two processes that reset it with one
    seed see the same task.
    """

    name: str
    perturbations: tuple[str, ...]
    """The kinds that `perturb` knows; none of them changes what the right answer is."""
    modules: tuple[str, ...] = ()
    """Modules beside the class's own whose code can change a task or a reward; they enter the environment hash."""
    libraries: tuple[str, ...] = ()
    """Distributions whose version can change a task or a reward; they enter the environment hash."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._action: str | None = None
        self._reward = 0.0

    def reset(
        self, seed: int | None = None, task: Task | None = None, harder: bool = False
    ) -> tuple[str, dict[str, Any]]:
        """Pose `task` again, or a task drawn with `seed` (None: from the system's entropy). Returns (prompt, info).

        `harder` draws one of the generalisation tasks, which are never trained on. `info` is the task: prompt, answer,
        trace and level.
        """
        if task is None:
            task = self.draw(random.Random(seed), harder)
        self._task, self._action, self._reward = task, None, 0.0
        return task["prompt"], {key: task[key] for key in ("prompt", "answer", "trace", "level")}

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Grade a whole completion. Returns (observation, reward, done, info); info["parsed"]: an answer was found.

        Raises GraderError, naming the task, when the grader fails.
        """
        assert self._task is not None, "step() before reset()"
        try:
            reward, parsed = self.grade(self._task, action)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise GraderError(f"{self.name}: grading failed on the task {self._task['prompt']!r}: {reason}") from error
        self._action, self._reward = action, reward
        return "", reward, True, {"parsed": parsed}

    def render(self, mode: str = "text") -> str:
        """The task, and what was made of it, for a person to read."""
        if mode != "text":
            raise ValueError(f"render mode {mode!r} is unknown; {self.name} has: text")
        if self._task is None:
            return f"{self.name}: no task yet"
        lines = [f"prompt: {self._task['prompt']}", f"answer: {self._task['answer']}"]
        if self._action is not None:
            lines += [f"action: {self._action}", f"reward: {self._reward:g}"]
        return "\n".join(lines)

    @abstractmethod
    def draw(self, rng: random.Random, harder: bool) -> Task:
        """A new task."""

    @abstractmethod
    def grade(self, task: Task, completion: str) -> tuple[float, bool]:
        """(Reward, whether an answer was found in the completion). May raise: `step` says which task it was."""

    @abstractmethod
    def perturb(self, prompt: str, kind: str, rng: random.Random) -> str:
        """The prompt in another form with the same right answer; `kind` is one of `perturbations`."""

    def canonical(self, prompt: str) -> str:
        """The form in which two prompts are the same task: white space is folded."""
        return " ".join(prompt.split())

    def reference(self, task: Task) -> str:
        """A completion that must earn the full reward."""
        return task["answer"]

    def absurd(self, task: Task) -> tuple[str, ...]:
        """Completions that must earn nothing."""
        return ("", "zxqvj")

    def data_files(self) -> tuple[Path, ...]:
        """Files that tasks are read from; their content enters the environment hash."""
        return ()


def unknown_perturbation(environment: BaseEnvironment, kind: str) -> ValueError:
    """The error of `perturb` for a kind that it does not know."""
    return ValueError(
        f"{environment.name} has no perturbation {kind!r}; it has: {', '.join(environment.perturbations)}"
    )
