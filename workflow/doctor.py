"""`qianka doctor`: everything that can be wrong with the machines before a run, as a table for the administrator."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import FrameType

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slurm.exclusions import FILE, excluded
from slurm.health.files import check_files
from slurm.health.finding import Finding, is_bad, within
from slurm.health.job import STAGE, examine_nodes
from slurm.health.node import check_alone
from slurm.health.torch import LIMIT_SECONDS, check_tokenizer
from slurm.health.versions import check_name
from slurm.query.nodelist import fold
from slurm.query.queue import is_here
from workflow.config import RunConfig
from workflow.paths import RunPaths

GRADER_SECONDS = 120.0
SITE_SECONDS = 30.0
COLOURS = {"bad": "bold red", "unknown": "yellow", "ok": "green", "not run": "dim"}
"""In the order of the table."""
WIDTH = 160
"""Columns of the table where there is no terminal."""


def examine(config: RunConfig, nodes: int | None) -> int:
    """Print the findings of this machine, or of `nodes` nodes of the cluster; 1 when something is bad, else 0.

    Raises SubmitError when the cluster gives no nodes.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    here, on_cluster = os.uname().nodename, is_here()
    if nodes is not None and not on_cluster:
        raise ValueError(
            "--nodes: there is no Slurm here (no sbatch, or no slurm.conf); without it: this machine alone"
        )
    folder = existing(RunPaths(config.name).folder)
    found = avoided(config)
    if nodes is None:
        # Where there is Slurm, this may be a login node, which has neither cards nor torch.
        cards = 0 if on_cluster else config.slurm.resources(STAGE).gpus_per_node
        found += within(10, "own name", here, lambda: check_name(here, has_peers=False))
        found += check_alone(folder, here, cards, _say, needs_torch=not on_cluster)
    else:
        _say("the run folder, from here")
        files = check_files(folder, here)
        found += files
        if not is_bad(files):
            found += examine_nodes(config.slurm, folder, nodes, _say)
    found += check_variables(config, here)
    _say("grader and tokenizer")
    found += within(GRADER_SECONDS, "grader", here, lambda: check_grader(config, here), "see the message")
    texts = {key: getattr(config, key).model_dump(mode="json") for key in ("environment", "model")}
    found += within(LIMIT_SECONDS, "tokenizer", here, lambda: check_tokenizer(here, texts, not on_cluster))
    if on_cluster:
        _say("the site's limits")
        found += within(SITE_SECONDS, "Slurm", here, lambda: check_site(here))
    show(found, folder)
    counts = Counter(finding.verdict for finding in found)
    print(", ".join(f"{counts[verdict]} {verdict}" for verdict in COLOURS))
    return int(is_bad(found))


def _end(number: int, frame: FrameType | None) -> None:
    """Leave as by Ctrl-C: the job is cancelled, and no file stays."""
    raise KeyboardInterrupt


def _say(what: str) -> None:
    print(f"checking: {what}", file=sys.stderr, flush=True)


def existing(folder: Path) -> Path:
    """The run's folder, or the nearest one above it that is there: they share a file system."""
    path = folder.resolve()
    return next(each for each in (path, *path.parents) if each.is_dir())


def avoided(config: RunConfig) -> list[Finding]:
    """The nodes that the run avoids, each with the reason and how long still."""
    folder = RunPaths(config.name).folder
    found: list[Finding] = []
    for node, entry in (excluded(folder) if folder.is_dir() else {}).items():
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.until))
        way_out = f"mended? remove it from {folder / FILE}"
        found.append(Finding("avoided", node, "unknown", f"until {until}: {entry.reason}", way_out))
    return found


def check_variables(config: RunConfig, node: str) -> list[Finding]:
    """The variables of cards and network as a rank that is started from here sees them, each with its source."""
    from slurm.devices.read import kind_of_node
    from slurm.inside.environment import describe

    try:
        rows = describe(config.slurm.environment, config.slurm.interface, kind_of_node())
    except ValueError as error:
        return [Finding("environment", node, "bad", str(error), "see the message")]
    return [Finding(name, node, "ok", f"{value} ({source})") for name, value, source in rows]


def check_grader(config: RunConfig, node: str) -> list[Finding]:
    """The environment's reference answers earn 1, absurd ones 0 (`stages.environments.self_test`)."""
    from stages.environments.registry import make
    from stages.environments.self_test import NUM_TASKS, self_test

    try:
        self_test(make(config.environment))
    except ValueError as error:
        return [Finding("grader", node, "bad", str(error), "see the message")]
    return [
        Finding("grader", node, "ok", f"{config.environment.name}: {NUM_TASKS} references earn 1, absurd answers 0")
    ]


def check_site(node: str) -> list[Finding]:
    """What this cluster limits: said, not judged; a run's own wishes are checked before each submit."""
    from slurm.ask.check import limits_of_jobs
    from slurm.query.facts import gather

    facts = gather()
    if facts.partitions is None:
        return [Finding("Slurm", node, "bad", "scontrol gives no answer", "ask the administrator: is slurmctld up?")]
    settings = {
        name: facts.settings[name].split()[0] for name in ("SlurmdTimeout", "KillWait") if name in facts.settings
    }
    said = [f"{name} {value}" for name, value in (limits_of_jobs(facts) | settings).items()]
    found = [Finding("Slurm's limits", node, "ok", ", ".join(said) or "not shown")]
    for name, partition in facts.partitions.items():
        nodes = [each for each in facts.nodes or [] if each.partition == name]
        time_limit = "no time limit" if partition.limits.minutes is None else f"{partition.limits.minutes:g} minutes"
        in_service = sum(each.in_service for each in nodes)
        measured = f"{partition.state.lower()}, {in_service} of {len(nodes)} nodes in service, {time_limit}"
        found.append(Finding(f"partition {name}", node, "ok" if in_service else "unknown", measured))
    return found


def show(found: Iterable[Finding], folder: Path) -> None:
    """The table, the worst first: on a terminal in colour, else as plain text that a mail can carry."""
    title = f"Qianka's doctor, {time.strftime('%Y-%m-%d %H:%M %Z')}, {folder}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("check", "node", "verdict", "measured", "way out"):
        table.add_column(column, overflow="fold", no_wrap=column in ("node", "verdict"))
    for each in sorted(merged(found), key=lambda finding: list(COLOURS).index(finding.verdict)):
        verdict = Text(each.verdict, style=COLOURS[each.verdict])
        table.add_row(Text(each.check), Text(each.node), verdict, Text(each.measured), Text(each.way_out))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)


def merged(found: Iterable[Finding]) -> list[Finding]:
    """One row for the nodes that say the same, and one for those that are well, whatever each has measured."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for each in found:
        same = () if each.verdict in ("ok", "not run") else (each.measured, each.way_out)
        groups.setdefault((each.check, each.verdict, *same), []).append(each)
    rows: list[Finding] = []
    for group in groups.values():
        first, nodes = group[0], list(dict.fromkeys(each.node for each in group))
        differ = any(each.measured != first.measured for each in group)
        measured = f"{first.node}: {first.measured}" if differ else first.measured
        rows.append(replace(first, node=fold(nodes), measured=measured))
    return rows


def draft() -> int:
    """Print a topology file that is drafted from what Slurm says. Raises NoAnswer when it says nothing."""
    from slurm.topology.draft import draft as drafted

    print(drafted(), end="")
    return 0
