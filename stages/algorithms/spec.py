"""An algorithm file as it is written: read from YAML, its form checked, its meaning not yet."""

from collections.abc import Hashable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from data.section import Section

SHIPPED = Path(__file__).parent


class NodeSpec(Section):
    """One node of the graph."""

    operator: str
    takes: dict[str, str] = Field(default_factory=dict)
    """By input of the operator, what it gets: a given quantity, `node`, or `node.output`."""
    values: dict[str, Any] = Field(default_factory=dict)
    """The operator's settings."""
    retries: NonNegativeInt = 0
    """How often it is tried again after an error."""
    seconds: PositiveFloat | None = None
    """How long it may take, all its attempts together."""


class AlgorithmSpec(Section):
    """The whole file."""

    description: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Defaults of the config's section `rl`, under all that the user writes."""
    operators: list[str] = Field(default_factory=list)
    """Python files with operators of the user's own, relative to this file."""
    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1
    skip_where_zero: str | None = None
    resample: NonNegativeInt = 0
    """How many more rounds of prompts a step may play to replace those whose samples are all left out."""
    experience: dict[str, NodeSpec] = Field(default_factory=dict)
    update: dict[str, NodeSpec]
    metrics: dict[str, str] = Field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """YAML allows a key twice and keeps the last one; here the lost node would be a silent mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"the name {twice[0]} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def find_algorithm(name: str) -> Path:
    """The file of a shipped algorithm by its name, or the file at a path. Raises ValueError naming what is shipped."""
    shipped = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    path = SHIPPED / f"{name}.yaml" if name in shipped else Path(name)
    if not path.is_file():
        raise ValueError(
            f"rl.algorithm: {name!r} is neither a shipped algorithm ({', '.join(shipped)}) nor a file"
            f"{near(name, shipped)}"
        )
    return path


def near(name: str, known: Iterable[str]) -> str:
    """What may have been meant by `name`, as the end of a message."""
    close = get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def read_spec(path: Path) -> AlgorithmSpec:
    """The file at `path`. Raises ValueError naming the file, the line or key, and the keys that there are."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: an algorithm file has the keys {', '.join(AlgorithmSpec.model_fields)}")
    try:
        spec = AlgorithmSpec.model_validate(content)
    except ValidationError as error:
        raise ValueError("\n".join(_problem(path, problem) for problem in error.errors())) from error

    if "algorithm" in spec.settings:
        raise ValueError(f"{path}: settings.algorithm: a file is one algorithm, and does not name another")
    return spec


def operator_files(path: Path, spec: AlgorithmSpec) -> list[Path]:
    """The user's own Python files that the algorithm file at `path` names. Raises ValueError where one is not there."""
    files = [(path.parent / name).resolve() for name in spec.operators]
    for name, file in zip(spec.operators, files, strict=True):
        if file.suffix != ".py" or not file.is_file():
            raise ValueError(f"{path}: operators: {name!r} is no Python file; it is looked for as {file}")
    return files


def _problem(path: Path, problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    if problem["type"] != "extra_forbidden":
        return f"{path}: {'.'.join(location)}: {problem['msg'].lower()}"
    keys = (AlgorithmSpec if len(location) == 1 else NodeSpec).model_fields
    return f"{path}: {'.'.join(location)}: unknown key{near(location[-1], keys)}; the keys are {', '.join(keys)}"
