"""Left-to-right arithmetic modulo a number: `7+5*3-2:` -> `7+5=2;2*3=6;6-2=4>4`.

There is no precedence: each step applies one operator to the value so far. A share of the demonstrations
(`misread_rate`) was written by an annotator who reads `*` as `+` throughout, so imitation alone learns a mixture and
the verifier has something to teach.
"""

import operator
import random
import re

from stages.environments.base import BaseEnvironment, Task, unknown_perturbation
from stages.environments.config import ArithmeticConfig

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
TOKENS = re.compile(r"[0-9]+|[-+*]")
SPACE_CHANCE = 0.3
"""Chance of a space before each operator or colon, and after each operator."""
ZERO_CHANCE = 0.2
"""Chance of a leading zero for each number."""


class Arithmetic(BaseEnvironment):
    """Poses and grades arithmetic tasks; the right value is always computed from the prompt."""

    name = "arithmetic"
    perturbations = ("spaces", "zeros")
    cpu_seconds = None

    def __init__(self, config: ArithmeticConfig) -> None:
        super().__init__()
        self.config = config

    def draw(self, rng: random.Random, harder: bool) -> Task:
        """A prompt with its right answer, and a demonstration that may be the careless annotator's."""
        config = self.config
        count = rng.choice(config.harder_operators if harder else config.operators)
        values = [rng.randrange(config.modulus) for _ in range(count + 1)]
        symbols = [rng.choice("+-*") for _ in range(count)]
        misread = rng.random() < config.misread_rate
        prompt = str(values[0]) + "".join(f"{s}{v}" for s, v in zip(symbols, values[1:], strict=True)) + ":"
        if rng.random() < config.space_rate:
            prompt = self.perturb(prompt, "spaces", rng)
        return {
            "prompt": prompt,
            "answer": str(self.value(prompt)),
            "trace": write_trace(values, symbols, config.modulus, misread),
            "level": count,
        }

    def value(self, prompt: str) -> int:
        """The right value of a prompt, whatever its spaces and leading zeros."""
        tokens = TOKENS.findall(prompt)
        value = int(tokens[0])
        for symbol, number in zip(tokens[1::2], tokens[2::2], strict=True):
            value = OPERATORS[symbol](value, int(number)) % self.config.modulus
        return value % self.config.modulus

    def grade(self, task: Task, completion: str) -> tuple[float, bool]:
        """1 when what follows the last `>` is the value; parsed when that is a number."""
        value = self.value(task["prompt"])
        _, mark, answer = completion.rpartition(">")
        parsed = bool(mark) and re.fullmatch("[0-9]+", answer) is not None
        return float(parsed and answer == str(value)), parsed

    def perturb(self, prompt: str, kind: str, rng: random.Random) -> str:
        """`spaces` around operators and the colon; `zeros` before numbers."""
        if kind == "spaces":
            return re.sub(r"[-+*:]", lambda found: spaced(found.group(), rng), prompt)
        if kind == "zeros":
            return re.sub(r"[0-9]+", lambda found: "0" * (rng.random() < ZERO_CHANCE) + found.group(), prompt)
        raise unknown_perturbation(self, kind)

    def canonical(self, prompt: str) -> str:
        """Without any white space."""
        return "".join(prompt.split())

    def reference(self, task: Task) -> str:
        """The answer in its form."""
        return f">{task['answer']}"

    def absurd(self, task: Task) -> tuple[str, ...]:
        """Nothing, noise, the bare answer, and the value beside the right one."""
        beside = (int(task["answer"]) + 1) % self.config.modulus
        return (*super().absurd(task), task["answer"], f">{beside}")


def spaced(symbol: str, rng: random.Random) -> str:
    """A symbol with, perhaps, a space on either side; nothing comes after the colon."""
    before = " " * (rng.random() < SPACE_CHANCE)
    after = " " * (symbol != ":" and rng.random() < SPACE_CHANCE)
    return before + symbol + after


def write_trace(values: list[int], symbols: list[str], modulus: int, misread: bool) -> str:
    """One step for each operator, then the answer; `misread` computes + wherever it reads *."""
    steps: list[str] = []
    value = values[0]
    for symbol, number in zip(symbols, values[1:], strict=True):
        applied = "+" if misread and symbol == "*" else symbol
        result = OPERATORS[applied](value, number) % modulus
        steps.append(f"{value}{symbol}{number}={result}")
        value = result
    return ";".join(steps) + f">{value}"
