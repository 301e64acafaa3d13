"""Where config values come from: files and the command line, each a layer over the one before."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stages.environments.rewards import own_file

OVERRIDE = re.compile(r"[A-Za-z_]\w*(\.\w+)*=")
PATHS = (
    ("model", "folder"),
    ("environment", "path"),
    ("environment", "harder_path"),
    ("rl", "algorithm"),
    ("slurm", "topology"),
)
"""Values that name a file or folder; one that is relative may be meant from the folder of its config file."""

Key = tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """The values of one source. `lines` has the line of each key, where the source has lines."""

    source: str
    values: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict[Key, int])

    def has(self, key: Key) -> bool:
        """Whether this layer gives a value to `key`."""
        found: Any = self.values
        for part in key:
            if isinstance(found, list):
                return True  # lists are replaced as a whole
            if not isinstance(found, Mapping) or part not in found:
                return False
            found = found[part]
        return True

    def where(self, key: Key) -> str:
        """The source, with the line of `key` where it is known."""
        return f"{self.source}:{self.lines[key]}" if key in self.lines else self.source


def is_override(argument: str) -> bool:
    """Whether an argument of the command line is `dotted.key=value` and not a file."""
    return OVERRIDE.match(argument) is not None


def read_file(path: Path) -> Layer:
    """A YAML (or JSON) file. Raises ValueError when it is missing, does not parse, or is not a mapping."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ValueError(f"config file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"config file {path} is not UTF-8 text: {error}") from error
    try:
        values = yaml.safe_load(text) or {}
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"config file {path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"config file {path}: expected `key: value` lines, found {type(values).__name__}")
    for section, key in PATHS:
        _resolve(values, section, key, path.parent)
    resolve_terms(values, path.parent)
    lines, again = _lines(node)
    if again:
        key, line = again[0]
        raise ValueError(f"{path}:{line}: `{'.'.join(key)}` is here again; it stands in line {lines[key]} already")
    return Layer(str(path), values, lines)


def read_override(text: str) -> Layer:
    """`rl.learning_rate=3e-4` from the command line; the value is YAML."""
    key, _, value = text.partition("=")
    try:
        parsed: Any = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ValueError(f"{text}: the value is not YAML: {error}") from error
    for part in reversed(key.split(".")):
        parsed = {part: parsed}
    resolve_terms(parsed, Path.cwd())
    return Layer(f"command line ({text})", parsed)


def merge(layers: Sequence[Layer]) -> dict[str, Any]:
    """All values, the later layer over the earlier one, section by section."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _merged(merged, layer.values)
    return merged


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping) and not _replaces(below, value):
            result[key] = _merged(below, value)
        else:
            result[key] = value
    return result


def _replaces(below: Mapping[str, Any], above: Mapping[str, Any]) -> bool:
    """Whether a section is of another kind (`environment.name`), so that the keys of the old kind mean nothing."""
    return "name" in above and "name" in below and above["name"] != below["name"]


def _resolve(values: dict[str, Any], section: str, key: str, folder: Path) -> None:
    """Point a relative path at the config file's folder when it is there and not below the working directory."""
    found = values.get(section)
    if not isinstance(found, dict) or not isinstance(found.get(key), str) or not found[key]:
        return
    beside = folder / found[key]
    if not Path(found[key]).exists() and beside.exists():
        found[key] = str(beside.resolve())


def resolve_terms(values: dict[str, Any], folder: Path) -> None:
    """Make the user's own files among `rl.rewards` absolute, from the working directory or else from `folder`."""
    section = values.get("rl")
    rewards = section.get("rewards") if isinstance(section, dict) else None
    for reward in rewards if isinstance(rewards, list) else []:
        own = own_file(str(reward.get("term", ""))) if isinstance(reward, dict) else None
        if own is not None:
            path = Path(own[0]) if Path(own[0]).exists() else folder / own[0]
            reward["term"] = f"{path.resolve()}:{own[1]}"


def key_lines(text: str) -> dict[Key, int]:
    """The line of each key in YAML that parses."""
    return _lines(yaml.compose(text, yaml.SafeLoader))[0]


def _lines(node: yaml.Node | None, above: Key = ()) -> tuple[dict[Key, int], list[tuple[Key, int]]]:
    """The line of each key, and the keys that come a second time, of which YAML would quietly take the last."""
    lines: dict[Key, int] = {}
    again: list[tuple[Key, int]] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            at, line = (*above, str(key.value)), key.start_mark.line + 1
            if at in lines:
                again.append((at, line))
                continue
            lines[at] = line
            below, repeated = _lines(value, at)
            lines.update(below)
            again += repeated
    return lines, again
