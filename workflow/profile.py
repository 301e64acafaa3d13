"""Profiles: what a site says of itself, for every run there, in a folder with site.yaml: the config's lowest layer."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from workflow.layers import Layer, merge, read_file

PROFILES = Path(__file__).parent / "profiles"
"""The shipped ones."""
SITE = "site.yaml"
"""Qianka's file in a profile's folder; beside it is Snakemake's config.yaml."""
SECTION = "slurm"


def with_profile(layers: Sequence[Layer]) -> list[Layer]:
    """The layers, over that of the profile that the last of them to do so names; and without that name.

    The resolved config has the profile's values, and needs it no more. Raises ValueError.
    """
    naming = [layer for layer in layers if "profile" in layer.values]
    rest = [
        Layer(layer.source, {key: value for key, value in layer.values.items() if key != "profile"}, layer.lines)
        for layer in layers
    ]
    if not naming or not naming[-1].values["profile"]:
        return rest
    return [_read(naming[-1]), *rest]


def _read(naming: Layer) -> Layer:
    """The layer of the profile that `naming` names."""
    where, name = naming.where(("profile",)), naming.values["profile"]
    if not isinstance(name, str):
        raise ValueError(f"{where}: `profile` is {name!r}, but it should be a name or a folder")
    folder = _folder(name, where, Path(naming.source).parent)
    layer = read_file(folder / SITE)
    strange = [key for key in layer.values if key != SECTION]
    if strange:
        raise ValueError(
            f"{layer.where((strange[0],))}: a profile has the section `{SECTION}` and nothing else, so that no result "
            f"depends on it; `{strange[0]}` belongs into a config file of the run"
        )
    return layer


def _folder(name: str, where: str, beside: Path) -> Path:
    shipped = sorted(path.parent.name for path in PROFILES.glob(f"*/{SITE}"))
    if name in shipped:
        return PROFILES / name
    found = [path for path in (Path(name), beside / name) if path.is_dir()]
    if not found:
        near = difflib.get_close_matches(name, shipped, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"{where}: there is no profile {name!r}; {meant}There are {', '.join(shipped)}, or the path of a folder "
            f"with a {SITE}"
        )
    if not (found[0] / SITE).exists():
        raise ValueError(f"{where}: the profile {name!r} has no {SITE} in {found[0].resolve()}")
    return found[0]


def over_profile(config: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Snakemake's --config, over the `config` of the profile that its command line names.

    Snakemake itself takes one or the other: a single `--config` would make it forget the whole site.
    """
    for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, inside = option.partition("=")
        if name in ("--workflow-profile", "--profile"):
            file = Path(inside if equals else value) / "config.yaml"
            if file.exists():
                below = yaml.safe_load(file.read_text()).get("config") or {}
                return merge([Layer(str(file), below), Layer("--config", dict(config))])
    return dict(config)
