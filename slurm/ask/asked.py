"""What one stage asks of Slurm, and by which keys."""

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm.ask.options import Value
from slurm.config import ResourcesConfig, SlurmConfig
from slurm.exclusions import Exclusion, excluded

INHERITED = {f"SBATCH_{name.upper()}": name for name in ("account", "partition", "qos", "reservation")}
"""What a user or a site may set for every submit. sbatch would put it over the batch script, so over the config."""
SHOWN = 20
"""Names that a message lists."""


@dataclass(frozen=True)
class Asked:
    """A stage's job: its shape, sbatch's options by their long names, and the key that each comes from."""

    stage: str
    shape: ResourcesConfig
    options: Mapping[str, Value]
    keys: Mapping[str, str]
    run_folder: Path
    avoided: Mapping[str, Exclusion]
    """Nodes that the run avoids."""

    @classmethod
    def of(cls, slurm: SlurmConfig, stage: str, run_folder: Path) -> "Asked":
        """From the config, the environment and the run's excluded nodes."""
        inherited = {
            name: (variable, os.environ[variable]) for variable, name in INHERITED.items() if variable in os.environ
        }
        avoided = excluded(run_folder)
        placed = _placed(slurm, stage, avoided)
        given = {
            name: pair
            for name, pair in (placed | inherited | slurm.given_to(stage)).items()
            if pair[1] not in (False, "")
        }
        return cls(
            stage=stage,
            shape=slurm.resources(stage),
            options={name: value for name, (_, value) in given.items()},
            keys={name: key for name, (key, _) in given.items()},
            run_folder=run_folder,
            avoided=avoided,
        )

    def for_sbatch(self) -> dict[str, Value]:
        """The options, with the nodes that the run avoids beside those that the user excludes."""
        exclude = [*filter(None, [self.text("exclude")]), *self.avoided]
        return {**self.options, **({"exclude": ",".join(exclude)} if exclude else {})}

    def text(self, option: str) -> str | None:
        """The value of an option."""
        return str(self.options[option]) if option in self.options else None

    def names(self, option: str) -> list[str]:
        """The value of an option that is a list of names."""
        return [name for name in (self.text(option) or "").split(",") if name]

    def key(self, option: str) -> str:
        """The key that gives an option, or would."""
        return self.keys.get(option, f"slurm.{option.replace('-', '_')}")

    def unknown(self, option: str, name: str, known: Iterable[str], what: str = "") -> str:
        """The message for a name that Slurm does not know."""
        names = sorted(known)
        near = difflib.get_close_matches(name, names, 2, 0.5)
        meant = f"; did you mean {' or '.join(near)}? Known:" if near else "; known:"
        is_what = f"{self.key(option)} is {self.text(option)!r}"
        return f"{is_what}, but there is no {what or option} {name}{meant} {listed(names)}"


def _placed(slurm: SlurmConfig, stage: str, avoided: Iterable[str]) -> dict[str, tuple[str, Value]]:
    """The options that keep the job close together on the site's topology. ValueError when it does not fit there."""
    if not slurm.topology or slurm.resources(stage).nodes == 1:
        return {}
    from slurm.topology import site
    from slurm.topology.options import sbatch_options
    from slurm.topology.planner import Need, plan

    topology = site.load(Path(slurm.topology))
    try:
        planned = plan(topology, Need.of(slurm.resources(stage), avoided))
    except ValueError as error:
        raise ValueError(f"slurm.{stage} on {slurm.topology}: {error}") from error
    return {name: ("slurm.topology", value) for name, value in sbatch_options(planned).items()}


def listed(names: Iterable[str]) -> str:
    """Names for a message, and not too many of them."""
    found = sorted(names)
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"{', '.join(found[:SHOWN])}{more}" or "none"
