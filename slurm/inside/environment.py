"""The environment variables of a rank, set before torch is imported, each with its source."""

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm.ask.options import SECRET
from slurm.attempt import JobFile
from slurm.config import Variable
from slurm.devices.device import Kind
from slurm.devices.read import count_cards, torch_version
from slurm.query.nodelist import expand_counts

VISIBLE = ("CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES")
"""vLLM and Ray read the first, MACA and RLinf the second (docs/profile-metax.md)."""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "MCCL_SOCKET_IFNAME")
SHARED_CARD = "MACA_MPS_MODE"
READ_AT_START = re.compile(r"PATH|LD_\w+|PYTHON\w+|GLIBC_TUNABLES|MALLOC_\w+")
"""The loader, libc and Python read these once, before any code of ours runs."""
TOLD = re.compile(r"(CUDA|MACA|MC|MCCL|NCCL|GLOO|VLLM|PYTORCH|TORCH|MCPYTORCH|OMP)_\w+")
"""Variables that `describe` lists also when nothing of ours sets them."""


@dataclass(frozen=True)
class Setting:
    """A variable of a rank. `value` None: it is removed. `before`: what it was, None when it was not set."""

    name: str
    value: str | None = field(repr=False)
    source: str
    before: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.name}={_shown(self.name, self.value)} ({self.source})"

    @property
    def replaces(self) -> str:
        """What a person is told whose own value is replaced; empty when none is."""
        if self.before is None or self.before == self.value:
            return ""
        now = "was removed" if self.value is None else f"became {_shown(self.name, self.value)}"
        return f"{self.name}: {_shown(self.name, self.before)} of the job's environment {now} ({self.source})"


def apply(job_file: JobFile, kind: Kind, env: MutableMapping[str, str] = os.environ) -> list[Setting]:
    """Set the variables of this rank and return what was set. Before torch is imported, which reads many of them then.

    A value of the job's environment that is replaced is said on standard output. ValueError when the variables
    contradict each other, or cannot take effect in a process that has started.
    """
    settings = plan(job_file.environment, job_file.interface, kind, env)
    for setting in settings:
        if setting.replaces:
            print(f"environment: {setting.replaces}", flush=True)
        if setting.value is None:
            env.pop(setting.name, None)
        else:
            env[setting.name] = setting.value
    return settings


def plan(
    environment: Mapping[str, Variable],
    interface: str | None,
    kind: Kind,
    env: Mapping[str, str],
    root: Path = Path("/"),
) -> list[Setting]:
    """What `apply` sets: the site's variables, then those that follow from the interface, the cards and the tasks."""
    check_environment(environment)
    settings = [
        Setting(name, variable.value, f"slurm.environment: {variable.source}", env.get(name))
        for name, variable in environment.items()
    ]
    if interface is not None:
        free = [name for name in INTERFACES if name not in environment]
        settings += [Setting(name, interface, "slurm.interface", env.get(name)) for name in free]
    after = _after(env, settings)
    if kind in ("metax", "unknown"):
        settings += _visibility(after)
    runs_on_maca = kind == "metax" or "metax" in torch_version()
    if runs_on_maca and SHARED_CARD not in environment and SHARED_CARD not in env:
        settings += _shared_card(after, root)
    return settings


def check_environment(environment: Mapping[str, Variable]) -> None:
    """ValueError for variables that a process reads only when it starts: `slurm.environment` is too late for them."""
    for name, variable in environment.items():
        if READ_AT_START.fullmatch(name):
            line = f"unset {name}" if variable.value is None else f'export {name}="{_shown(name, variable.value)}"'
            raise ValueError(
                f"slurm.environment.{name}: a process reads it when it starts, before this can set it; "
                f"put the line `{line}` into slurm.setup instead, which runs before the ranks start"
            )


def describe(
    environment: Mapping[str, Variable], interface: str | None, kind: Kind, env: Mapping[str, str] = os.environ
) -> list[tuple[str, str, str]]:
    """Name, value and source of what a rank would see, for a person to read; values of secrets are left out."""
    settings = {setting.name: setting for setting in plan(environment, interface, kind, env)}
    others = {name: value for name, value in env.items() if name not in settings and TOLD.fullmatch(name)}
    rows = [(name, _shown(name, setting.value), setting.source) for name, setting in settings.items()]
    return rows + [(name, _shown(name, value), "set before Qianka started") for name, value in sorted(others.items())]


def _after(env: Mapping[str, str], settings: list[Setting]) -> dict[str, str]:
    after = dict(env)
    for setting in settings:
        after.pop(setting.name, None)
        if setting.value is not None:
            after[setting.name] = setting.value
    return after


def _visibility(env: Mapping[str, str]) -> list[Setting]:
    """Both variables alike, whichever of the two is there."""
    found = {name: env[name] for name in VISIBLE if name in env}
    if len({value.replace(" ", "") for value in found.values()}) > 1:
        both = " and ".join(f"{name}={value}" for name, value in found.items())
        raise ValueError(
            f"{both} name different cards: Slurm's gres plugin sets the first, a site's TaskProlog or a person the "
            "second; unset one of them, and Qianka sets both alike"
        )
    return [
        Setting(name, value, f"as {other}") for other, value in found.items() for name in VISIBLE if name not in found
    ]


def _shared_card(env: Mapping[str, str], root: Path) -> list[Setting]:
    """MACA refuses a second process on a card unless it is told."""
    tasks, cards = tasks_on_node(env), _cards(env, root)
    if not cards or tasks is None or tasks <= cards:
        return []
    return [Setting(SHARED_CARD, "1", f"{tasks} ranks share {cards} card(s) on this node; ms-swift's page on MetaX")]


def _cards(env: Mapping[str, str], root: Path) -> int:
    """Cards of this job on this node; 0 when nobody says. Inside Slurm a rank may see its own alone."""
    if env.get("SLURM_GPUS_ON_NODE", "").isdecimal():
        return int(env["SLURM_GPUS_ON_NODE"])
    visible = next((env[name] for name in VISIBLE if name in env), None)
    if visible is not None and "SLURM_STEP_ID" not in env:
        return len([card for card in visible.split(",") if card.strip()])
    return count_cards(root)


def tasks_on_node(env: Mapping[str, str]) -> int | None:
    """Ranks of this job on this node, as torchrun, submitit or Slurm says; None when nobody does."""
    for name in ("LOCAL_WORLD_SIZE", "SUBMITIT_LOCAL_NTASKS"):
        if env.get(name, "").isdecimal():
            return int(env[name])
    try:
        counts = expand_counts(env.get("SLURM_STEP_TASKS_PER_NODE", env.get("SLURM_TASKS_PER_NODE", "")))
    except ValueError:
        return None
    node = env.get("SLURM_NODEID", "0")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else None


def _shown(name: str, value: str | None) -> str:
    if value is None:
        return "(removed)"
    return "(not shown)" if SECRET.search(name) else value
