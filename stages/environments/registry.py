"""From the config to the environment."""

from stages.environments.arithmetic import Arithmetic
from stages.environments.base import BaseEnvironment
from stages.environments.config import ArithmeticConfig, EnvironmentConfig, GuessConfig
from stages.environments.guess import Guess
from stages.environments.rows import Rows


def make(config: EnvironmentConfig) -> BaseEnvironment:
    """The environment that the config names. ValueError when it cannot be made from it."""
    if isinstance(config, ArithmeticConfig):
        return Arithmetic(config)
    if isinstance(config, GuessConfig):
        return Guess(config)
    return Rows(config)
