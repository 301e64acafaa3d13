"""Which environment poses and grades the tasks."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from data.section import Section


class ArithmeticConfig(Section):
    """Left-to-right arithmetic modulo a number, `7+5*3-2:` -> `7+5=2;2*3=6;6-2=4>4` (`environments.arithmetic`)."""

    name: Literal["arithmetic"] = "arithmetic"
    modulus: int = Field(default=10, ge=2, le=100)
    """Values live in 0..modulus-1."""
    operators: tuple[PositiveInt, ...] = Field(default=(2, 3, 4), min_length=1)
    """Numbers of operators in the tasks that are trained on."""
    harder_operators: tuple[PositiveInt, ...] = Field(default=(5, 6), min_length=1)
    """Numbers of operators in the generalisation tasks, never trained on."""
    misread_rate: float = Field(default=0.7, ge=0, le=1)
    """Share of demonstrations written by an annotator who reads * as +; the verifier is never fooled."""
    space_rate: float = Field(default=0.1, ge=0, le=1)
    """Share of prompts with random spaces."""


class RowsConfig(Section):
    """Tasks from the user's own file: prompt, answer and an optional trace (`environments.rows`)."""

    name: Literal["rows"] = "rows"
    path: str = ""
    """A .jsonl or .parquet file with the columns prompt and answer, and trace where there is one."""
    harder_path: str = ""
    """A file of harder tasks for the generalisation part of the evaluation; empty for none."""
    grader: Literal["exact", "contains", "math"] = "exact"
    """exact: the completion is the answer; contains: it has the answer in it; math: math-verify finds them equal."""


class GuessConfig(Section):
    """Find a number by asking: `37-52:` -> `44`, `HIGHER 45-52:` -> `48`, ... (`environments.guess`)."""

    name: Literal["guess"] = "guess"
    numbers: int = Field(default=16, ge=2, le=1000)
    """How many numbers the hidden one is among, in the tasks that are trained on."""
    harder_numbers: int = Field(default=31, ge=2, le=1000)
    """The same in the generalisation tasks, never trained on."""
    turns: int = Field(default=5, ge=1, le=64)
    """Guesses that a policy has; by halving, k of them find any of 2^k - 1 numbers."""


class RewardConfig(Section):
    """A term of the reward (`environments.rewards`)."""

    term: str
    """A shipped term, or a function of your own: `my_rewards.py:brevity`, from the folder of the config file."""
    weight: float = 1.0
    values: dict[str, bool | int | float | str | list[int] | list[float] | list[str]] = Field(default={})
    """The term's settings, by name."""


EnvironmentConfig = Annotated[ArithmeticConfig | GuessConfig | RowsConfig, Field(discriminator="name")]
