"""Find a hidden number by asking, in a few turns: `37-52:` -> `40`, `HIGHER 41-52:` -> `47`, `LOWER 41-46:` -> `45`.

The demonstrations guess at random, so imitation teaches the form of a guess and the verifier has the halving to teach.
"""

import random
import re

from stages.environments.base import Answer, BaseEnvironment, Task, unknown_perturbation
from stages.environments.config import GuessConfig

HIGHER, LOWER, UNREADABLE = "HIGHER", "LOWER", "NUMBER?"
"""Before the range that is left."""
LARGEST_START = 899
"""Of the lowest number, so that prompts differ: a prompt is a task, and one hidden number belongs to it."""
OPENINGS = 3
"""A prompt has fewer guesses than that in it: so imitation has seen a game in the middle, too."""
RANGE = re.compile(r"([0-9]+)-([0-9]+):")
NUMBER = re.compile(r"-?[0-9]+(?:[.,][0-9]+)*")
SPACE_CHANCE = 0.5


class Guess(BaseEnvironment):
    """The last number of a turn is its guess, whatever else it says. The reward is 1 for finding the hidden one."""

    name = "guess"
    perturbations = ("spaces",)
    cpu_seconds = None

    def __init__(self, config: GuessConfig) -> None:
        super().__init__()
        self.config, self.max_turns = config, config.turns

    def draw(self, rng: random.Random, harder: bool) -> Task:
        """A range, at once or after up to two guesses at random; the number hidden in it; and one more such guess."""
        count = self.config.harder_numbers if harder else self.config.numbers
        low = rng.randint(1, LARGEST_START)
        high = low + count - 1
        hidden, prompt = rng.randint(low, high), f"{low}-{high}:"
        for _ in range(rng.randrange(OPENINGS)):
            guessed = rng.randint(low, high)
            if guessed != hidden:
                word, low, high = narrowed(guessed, hidden, low, high)
                prompt += f"{guessed} {word} {low}-{high}:"
        guessed = rng.randint(low, high)
        return {"prompt": prompt, "answer": str(hidden), "trace": str(guessed), "level": high - low + 1}

    def answer(self, task: Task, action: str) -> Answer:
        """Found; or where the hidden number lies, until no guess is left."""
        reward, parsed = self.grade(task, action)
        if reward or self.turns_left == 1:
            return Answer("", reward, True, parsed)
        low, high = (int(part) for part in RANGE.findall(self.canonical(task["prompt"]))[-1])
        word = UNREADABLE
        for said in (*(before for before, _ in self._turns), action):
            guessed = guess(said)
            word = UNREADABLE
            if guessed is not None:
                word, low, high = narrowed(guessed, int(task["answer"]), low, high)
        return Answer(f"{word} {low}-{high}:", 0.0, False, parsed)

    def grade(self, task: Task, completion: str) -> tuple[float, bool]:
        """1 when the last number is the hidden one; parsed when there is a whole number."""
        guessed = guess(completion)
        return float(guessed == int(task["answer"])), guessed is not None

    def perturb(self, prompt: str, kind: str, rng: random.Random) -> str:
        """`spaces` around the dash and the colon."""
        if kind == "spaces":
            return re.sub(r"[-:]", lambda found: " " * (rng.random() < SPACE_CHANCE) + found.group(), prompt)
        raise unknown_perturbation(self, kind)

    def canonical(self, prompt: str) -> str:
        """Without any white space."""
        return "".join(prompt.split())

    def absurd(self, task: Task) -> tuple[str, ...]:
        """Nothing, noise, a number that is not the hidden one, and all numbers at once but that one last."""
        beside = int(task["answer"]) + 1
        return (*super().absurd(task), str(beside), f"{task['answer']} {beside}", f"-{task['answer']}")


def narrowed(guessed: int, hidden: int, low: int, high: int) -> tuple[str, int, int]:
    """Where the hidden number is from a guess that missed it, in words and as what is left of the range."""
    return (HIGHER, max(low, guessed + 1), high) if guessed < hidden else (LOWER, low, min(high, guessed - 1))


def guess(text: str) -> int | None:
    """The last number of a text, where that is whole."""
    found = NUMBER.findall(text)
    if not found or not re.fullmatch("-?[0-9]+", found[-1]):
        return None
    digits = found[-1].lstrip("-").lstrip("0")[:9] or "0"  # no more are compared: beyond is beyond
    return -int(digits) if found[-1].startswith("-") else int(digits)
