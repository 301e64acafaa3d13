"""One digest of all that can change a task or a reward: two stages with the same one saw the same environment."""

import inspect
import io
import platform
import sys
import tokenize
from importlib import metadata
from pathlib import Path

from checkpoints.manifest import digest, file_digest
from stages.environments.base import BaseEnvironment
from stages.environments.config import EnvironmentConfig
from stages.environments.registry import make

OBSERVATION_SEED = 0


def environment_hash(config: EnvironmentConfig) -> str:
    """Digest of the name, parameters, code, Python and library versions, data files, and first observation.

    Data files count by their content, wherever they lie. Our own environments do not depend on PYTHONHASHSEED, so it is
    no ingredient by itself; one that did would show in the first observation, which would differ between processes.
    ValueError when a data file is missing.
    """
    environment = make(config)
    observation, info = environment.reset(seed=OBSERVATION_SEED)
    return digest(
        {
            "name": environment.name,
            "parameters": config.model_dump(mode="json", exclude={"path", "harder_path"}),
            "code": {name: code_digest(name) for name in code_modules(environment)},
            "python": platform.python_version(),
            "libraries": {name: metadata.version(name) for name in environment.libraries},
            "data": [data_digest(path) for path in environment.data_files()],
            "first_observation": digest({"observation": observation, "info": info}),
        }
    )


def code_modules(environment: BaseEnvironment) -> list[str]:
    """Names of our modules that decide what the environment poses and how it grades."""
    classes = [cls.__module__ for cls in type(environment).__mro__ if issubclass(cls, BaseEnvironment)]
    return sorted({*classes, *environment.modules})


def code_digest(module: str) -> str:
    """Digest of a module's code without its comments and line breaks."""
    source = io.StringIO(inspect.getsource(sys.modules[module]))
    tokens = tokenize.generate_tokens(source.readline)
    return digest("\n".join(token.string for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)))


def data_digest(path: Path) -> str:
    """Digest of a data file. ValueError when it is missing."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file, but the environment reads its tasks from it")
    return file_digest(path)
