"""An algorithm file as it is written: read from YAML, its form checked, its meaning not yet."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from data.section import Section


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


def read_spec(path: Path) -> AlgorithmSpec:
    """The file at `path`. Raises ValueError naming the file, the line or key, and the keys that there are."""
    try:
        content = yaml.load(path.read_text(), _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: an algorithm file has the keys {', '.join(AlgorithmSpec.model_fields)}")
    try:
        return AlgorithmSpec.model_validate(content)
    except ValidationError as error:
        raise ValueError("\n".join(_problem(path, problem) for problem in error.errors())) from error


def _problem(path: Path, problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    text = f"{path}: {'.'.join(location)}: {problem['msg'].lower()}"
    if problem["type"] == "extra_forbidden":
        spec = AlgorithmSpec if len(location) == 1 else NodeSpec
        text += f"; the keys are {', '.join(spec.model_fields)}"
    return text
