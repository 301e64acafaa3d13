"""`qianka run` and `qianka plan`: the whole pipeline through Snakemake, what it would do, and what came of it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slurm.fingerprint import ROOT
from slurm.query.queue import choose_executor
from workflow.config import RunConfig
from workflow.paths import RunPaths
from workflow.plan import StagePlan, make_plan
from workflow.preflight import check_config
from workflow.session import begin, check_owner, release
from workflow.status import troubles

WIDTH = 120
"""Of a table that goes to a file."""


def run_pipeline(run: RunConfig, cores: int | None) -> int:
    """Hand the run to Snakemake and wait for it. Returns the exit code."""
    begin(run)
    paths = RunPaths(run.name)
    _print_plan(make_plan(run))
    release(run)
    command = [sys.executable, "-P", "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += [
        "--configfile",
        str(paths.config),
        "--cores",
        str(cores or "all"),
        "--quiet",
        "rules",
        "progress",
        "host",
    ]
    code = _in_front(command, cache_settings(paths))
    if code == 0:
        print_summary(paths)
    else:  # once more, below what Snakemake has to say
        print(*troubles(run.name), sep="\n", file=sys.stderr)
    return code


def show_plan(run: RunConfig) -> None:
    """Print what would run and why, and the algorithm of the rl stage."""
    from workflow.drawing import draw_algorithm

    check_config(run)
    check_owner(run)
    _print_plan(make_plan(run))
    if run.rl.mode == "asynchronous":
        Console().print(Text(actors_line(run)))
    Console().print("", draw_algorithm(run))


def actors_line(run: RunConfig) -> str:
    """What plays for the rl stage."""
    shape, config = run.slurm.actors, run.rl.asynchronous
    what = "processes"
    if choose_executor(run.slurm) == "slurm":
        each = f"{shape.nodes} node(s) x {shape.tasks_per_node}, {shape.gpus_per_node} card(s) a node"
        what = f"tasks of an array, each {each}"
    evaluator = f", and an evaluator of every {config.evaluate_every}. version" if config.evaluate_every else ""
    return f"rl is asynchronous: {shape.count} actors ({what}){evaluator}, staleness at most {config.max_staleness}"


def show_algorithm(name: str) -> None:
    """Check and draw a shipped algorithm, or that of a file."""
    from workflow.drawing import draw_file

    Console().print(draw_file(name))


def cache_settings(paths: RunPaths) -> dict[str, str]:
    """Where Snakemake may keep its cache: in the run folder when the home folder cannot be written."""
    home = Path.home()
    writable = os.access(home / ".cache" if (home / ".cache").exists() else home, os.W_OK | os.X_OK)
    if writable or "XDG_CACHE_HOME" in os.environ:
        return {}
    return {"XDG_CACHE_HOME": str(paths.folder.resolve() / ".cache")}


def _in_front(command: list[str], settings: dict[str, str]) -> int:
    """Run a command in a process group of its own and pass signals on to the whole group, each of them once."""
    child = subprocess.Popen(command, process_group=0, env=os.environ | settings)

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.killpg(child.pid, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _print_plan(plans: list[StagePlan]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for plan in plans:
        word = "run" if plan.reasons else "keep"
        table.add_row(plan.stage, Text(word, style="bold" if plan.reasons else "dim"), Text("\n".join(plan.reasons)))
    Console().print(table)


def print_summary(paths: RunPaths) -> None:
    """The table that a run ends with, and where its dashboard is."""
    from stages.evaluate.summary import COLUMNS, summary

    report = json.loads(paths.report.read_text())
    table = Table(title=f"run {paths.name}", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "stage" else "right", overflow="fold")
    for row in summary(report):
        table.add_row(*(str(getattr(row, column)) for column in COLUMNS))
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(table)
    console.print(Text(f"dashboard: {Path(paths.dashboard).resolve()}"), soft_wrap=True)
