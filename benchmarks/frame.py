"""Runs the benchmarks: every module beside this one that has `measure() -> dict` with the fields of `Figure`.

A benchmark measures Qianka and a baseline in the same process, one after the other, so the ratio means something on a
noisy machine too.
"""

import importlib
import json
import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from benchmarks.cluster import NotHere

FOLDER = Path(__file__).parent
SHARED = ("__init__", "__main__", "frame", "commands", "cluster", "rl_step", "trl_step", "emulated", "drawing")
RESULTS = FOLDER / "results.json"
DOCUMENT = FOLDER.parent / "docs" / "benchmarks.md"
MEASURED = re.compile(r"^(\| `(\w+)` \|.*\|)[^|]*(\|[^|]*\|)$", re.MULTILINE)
"""A row of its tables: the last column but one is what was measured."""


class Figure(BaseModel):
    """What one benchmark found."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    value: float
    unit: str
    baseline: float
    """What the baseline reached, in the same unit."""
    ratio: float
    """value / baseline."""


def benchmark_names() -> list[str]:
    """The modules that measure something."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)


def measure(name: str) -> Figure:
    """One figure, measured in a process of its own, so that no benchmark warms another's caches or threads."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return Figure.model_validate(pool.submit(_measure_here, name).result())


def _measure_here(name: str) -> dict[str, str | float]:
    return importlib.import_module(f"benchmarks.{name}").measure()


def run(only: str = "", results: Path = RESULTS) -> list[Figure]:
    """Measure all benchmarks, or the one called `only`; write all known figures to `results` and print a table."""
    known = benchmark_names()
    assert not only or only in known
    figures: dict[str, Figure] = {}
    if results.exists():
        kept = [Figure.model_validate(entry) for entry in json.loads(results.read_text())]
        figures = {figure.name: figure for figure in kept if figure.name in known}
    for name in [only] if only else known:
        try:
            figures[name] = measure(name)
        except NotHere as error:
            print(f"{name} is left out: {error}")
            continue
        # After each one: a later failure loses nothing.
        entries = [figures[key].model_dump() for key in sorted(figures)]
        results.write_text(json.dumps(entries, indent=1) + "\n")
    _show(figures)
    return [figures[key] for key in sorted(figures)]


def write_down(results: Path = RESULTS, document: Path = DOCUMENT) -> None:
    """Put the figures of `results` into the table of asynchronous mode in `document`."""
    figures = {entry["name"]: Figure.model_validate(entry) for entry in json.loads(results.read_text())}

    def measured(row: re.Match[str]) -> str:
        figure = figures.get(row[2])
        if figure is None:
            return row[0]
        return (
            f"{row[1]} {figure.value:,.4g} and {figure.baseline:,.4g} {figure.unit}: **{figure.ratio:,.2f}** {row[3]}"
        )

    before, heading, rest = document.read_text().partition("\n## Asynchronous mode\n")
    section, end, after = rest.partition("\n## ")
    document.write_text(before + heading + MEASURED.sub(measured, section) + end + after)


def _show(figures: dict[str, Figure]) -> None:
    table = Table("benchmark", "value", "baseline", "unit", "ratio", title=str(RESULTS.relative_to(FOLDER.parent)))
    for key in sorted(figures):
        figure = figures[key]
        table.add_row(figure.name, f"{figure.value:.4g}", f"{figure.baseline:.4g}", figure.unit, f"{figure.ratio:.2f}x")
    Console().print(table)
