"""The interface of every environment: it poses tasks, hears an answer, and gives a reward."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from stages.environments.processes import CPU_SECONDS, call, reason

Task = Mapping[str, Any]
"""What an environment poses: prompt, answer, trace (a demonstration, perhaps a bad one) and level (how hard)."""


class Answer(NamedTuple):
    """What an environment says to an action."""

    observation: str
    """What the policy sees next; empty when the episode is done."""
    reward: float
    done: bool
    parsed: bool
    """Whether an answer was found in the action."""


class GraderError(Exception):
    """The grader itself failed on a task. It is not a wrong answer: callers count it apart."""


class BaseEnvironment(ABC):
    """An environment, of a single turn unless `answer` is overridden. It holds one task at a time.

    It draws no random numbers but those of its seed, and never touches torch, the global random state, or the hash of
    a string, so two processes that reset it with one seed see the same task. Episodes that are played side by side
    have shallow copies of one instance, so what `answer` keeps is set anew by `reset`, and not changed in place.
    """

    name: str
    perturbations: tuple[str, ...]
    """The kinds that `perturb` knows; none of them changes what the right answer is."""
    modules: tuple[str, ...] = ()
    """Modules beside the class's own whose code can change a task or a reward; they enter the environment hash."""
    max_turns: int = 1
    """Turns of an episode at most; one that is not done by then ends unfinished."""
    cpu_seconds: int | None = CPU_SECONDS
    """Processor time of one `answer`, which is called in a process of its own; None calls it in this one, where nothing
    that the policy says can make it slow. Then what the environment holds need not be pickled either."""
    libraries: tuple[str, ...] = ()
    """Distributions whose version can change a task or a reward; they enter the environment hash."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._turns: tuple[tuple[str, str], ...] = ()  # (action, observation)
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
        self._task, self._turns, self._reward = task, (), 0.0
        return task["prompt"], {key: task[key] for key in ("prompt", "answer", "trace", "level")}

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Hear a whole turn of the policy. Returns (observation, reward, done, info).

        `info["parsed"]`: an answer was found in it. The reward of an episode is the sum over its turns. Raises
        GraderError, naming the task, when the grader fails or reaches a limit, ValueError for what is no Answer.
        """
        assert self._task is not None, "step() before reset()"
        task = self._task["prompt"]
        try:
            answer = self._answer(self._task, action)
        except (Exception, SystemExit) as error:
            raise GraderError(f"{self.name}: grading failed on the task {task!r}: {reason(error)}") from error
        if not (isinstance(answer, Answer) and all(map(isinstance, answer[:2], (str, Real)))):
            raise ValueError(
                f"{self.name} gives {answer!r} on the task {task!r}, but `answer` must return an Answer, with a text "
                "as its observation and a number as its reward"
            )
        self._turns = (*self._turns, (action, answer.observation))
        self._reward += answer.reward
        return answer.observation, answer.reward, answer.done, {"parsed": answer.parsed}

    def _answer(self, task: Task, action: str) -> Any:
        """What `answer` returns, in which process it may be."""
        if self.cpu_seconds is None:
            return self.answer(task, action)
        answer, changed = call(_answer_of, self, task, action, cpu_seconds=self.cpu_seconds)
        vars(self).update(changed)
        return answer

    def render(self, mode: str = "text") -> str:
        """The task, and what was made of it, for a person to read."""
        if mode != "text":
            raise ValueError(f"render mode {mode!r} is unknown; {self.name} has: text")
        if self._task is None:
            return f"{self.name}: no task yet"
        lines = [f"prompt: {self._task['prompt']}", f"answer: {self._task['answer']}"]
        for action, observation in self._turns:
            lines += [f"action: {action}", *([f"observation: {observation}"] if observation else [])]
        lines += [f"reward: {self._reward:g}"] if self._turns else []
        return "\n".join(lines)

    @property
    def turns_left(self) -> int:
        """Turns that the policy still has, the one that is being answered included."""
        return self.max_turns - len(self._turns)

    @abstractmethod
    def draw(self, rng: random.Random, harder: bool) -> Task:
        """A new task."""

    @abstractmethod
    def grade(self, task: Task, completion: str) -> tuple[float, bool]:
        """(Reward, whether an answer was found in the completion). May raise: `step` says which task it was."""

    def answer(self, task: Task, action: str) -> Answer:
        """What a turn of the policy is answered: here its grade, and the episode is done. May raise like `grade`."""
        reward, parsed = self.grade(task, action)
        return Answer("", reward, True, parsed)

    @abstractmethod
    def perturb(self, prompt: str, kind: str, rng: random.Random) -> str:
        """The prompt in another form with the same right answer; `kind` is one of `perturbations`."""

    def canonical(self, prompt: str) -> str:
        """The form in which two prompts are the same task: white space is folded."""
        return " ".join(prompt.split())

    def reference(self, task: Task) -> str:
        """A completion that must earn the full reward, at once or by being said in every turn."""
        return task["answer"]

    def absurd(self, task: Task) -> tuple[str, ...]:
        """Completions that must earn nothing, even when said in every turn."""
        return ("", "zxqvj")

    def data_files(self) -> tuple[Path, ...]:
        """Files that tasks are read from; their content enters the environment hash."""
        return ()


def _answer_of(environment: BaseEnvironment, task: Task, action: str) -> tuple[Any, dict[str, Any]]:
    """In another process: what `answer` returns, and what it has set anew in the environment."""
    before = dict(vars(environment))
    answer = environment.answer(task, action)
    return answer, {key: value for key, value in vars(environment).items() if value is not before.get(key)}


def unknown_perturbation(environment: BaseEnvironment, kind: str) -> ValueError:
    """The error of `perturb` for a kind that it does not know."""
    return ValueError(
        f"{environment.name} has no perturbation {kind!r}; it has: {', '.join(environment.perturbations)}"
    )
