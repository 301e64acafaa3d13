"""The settings of an algorithm: defaults of the section `rl`, from its file, under all that a user writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.algorithms.spec import SHIPPED, find_algorithm, read_spec
from stages.rl.config import RLConfig
from workflow.layers import Layer, key_lines, merge, resolve_terms

SECTION, KEY = "rl", "algorithm"


def with_settings(layers: Sequence[Layer]) -> list[Layer]:
    """The layers, over the settings of the algorithm that they name or else of the default one.

    The file of a user's own algorithm is named by its absolute path then, so that the job finds it. Raises ValueError.
    """
    naming = [layer for layer in layers if layer.has((SECTION, KEY))]
    name = naming[-1].values[SECTION][KEY] if naming else RLConfig.model_fields[KEY].default
    if not isinstance(name, str):
        return list(layers)  # the config says what is wrong with it
    try:
        path = find_algorithm(name)
    except ValueError as error:
        raise ValueError(f"{naming[-1].where((SECTION, KEY))}: {error}") from error
    rest = [_as_written(layer, path) for layer in layers]
    if path.parent != SHIPPED:
        rest.append(Layer(naming[-1].where((SECTION, KEY)), {SECTION: {KEY: str(path.resolve())}}))
    return [settings_of(path), *rest]


def settings_of(path: Path) -> Layer:
    """The settings of the algorithm file at `path`, and in which line of it each stands."""
    values = {SECTION: read_spec(path).settings}
    lines = {(SECTION, *key[1:]): line for key, line in key_lines(path.read_text()).items() if key[0] == "settings"}
    resolve_terms(values, path.parent)
    return Layer(str(path), values, lines)


def _as_written(layer: Layer, path: Path) -> Layer:
    """A resolved config has every value. Laid under another algorithm, it keeps those that a person had written."""
    section = layer.values.get(SECTION)
    if "source" not in layer.values or not isinstance(section, Mapping) or not isinstance(section.get(KEY), str):
        return layer
    try:
        before = find_algorithm(section[KEY])
    except ValueError as error:
        what = "without it nobody knows which values it brought; start from the config file that this was made from"
        raise ValueError(f"{layer.source}: {error}; {what}") from error
    if before.resolve() == path.resolve():
        return layer
    defaults = RLConfig.model_validate(merge([settings_of(before)])[SECTION]).model_dump(mode="json")
    return Layer(layer.source, {**layer.values, SECTION: _other_than(section, defaults)}, layer.lines)


def _other_than(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not the defaults, section by section."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        default = defaults.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            value = _other_than(value, default)
            if value:
                kept[key] = value
        elif key not in defaults or value != default:
            kept[key] = value
    return kept
