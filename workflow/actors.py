"""`qianka actors`: who plays for a run, how fast, and why others are gone; and more of them while it goes on."""

import json
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from slurm.actors.arrays import read_arrays
from slurm.actors.ask import add
from slurm.actors.crew import failures
from slurm.actors.tasks import TABLE, living
from slurm.query.queue import NoAnswer
from slurm.record import Record, is_finished
from slurm.wait import state
from slurm.wait.state import Kind
from workflow.config import RunConfig, load
from workflow.paths import RunPaths
from workflow.request import make_request

COLUMNS = ("actor", "role", "node", "supernode", "tokens/s", "episodes/s", "busy", "version", "plays", "state")
NUMBERS = COLUMNS[4:9]
SHOWN_GONE = 16
SHOWN_ASIDE = 3
SILENT_SECONDS = 30.0
"""The coordinator notes its members every second; of an older note nobody knows whether it still holds."""


def add_actors(name: str | None, count: int) -> None:
    """Bring more actors to a run that goes on. ValueError when there is none to join."""
    paths, run, record = _asynchronous(name)
    found = state.query(paths.stage("rl").resolve(), record)
    if found.kind in (Kind.ENDED, Kind.FINISHED):
        raise ValueError(f"the rl job of run {paths.name} {found.text}, so there is nothing to play for")
    array = add(make_request(run, "rl"), _attempt(paths, record), record, count)
    job = f"Slurm job {array.job_id}" if array.executor == "slurm" else "processes of this machine"
    print(f"{count} more actor{'s' if count > 1 else ''} of run {paths.name}: {job}")


def show_actors(name: str | None) -> RenderableType:
    """The table of a run's actors."""
    paths, _, record = _asynchronous(name)
    return actors_table(_attempt(paths, record)) or Text(f"run {paths.name} has no actors yet")


def _asynchronous(name: str | None) -> tuple[RunPaths, RunConfig, Record]:
    """The run, its config, and the record of its rl stage."""
    from workflow.jobs import find_run, record_of  # they reach submitit, and `qianka status` needs the table alone

    paths = find_run(name)
    run = load([str(paths.config)])
    if run.rl.mode != "asynchronous":
        raise ValueError(f"run {paths.name} has no actors: rl.mode is {run.rl.mode}; take rl.mode=asynchronous")
    folder = paths.stage("rl").resolve()
    if not (folder / "record.json").exists():
        raise ValueError(f"the rl stage of run {paths.name} was never started, so it has no actors")
    return paths, run, record_of(folder)


def _attempt(paths: RunPaths, record: Record) -> Path:
    return paths.stage("rl").resolve() / record.attempt


def actors_table(attempt: Path) -> Table | None:
    """Members as the coordinator has noted them, tasks that have not joined, and what those that failed said."""
    noted = _noted(attempt)
    known = _members(noted)
    why = failures(attempt)
    over = _over(attempt)
    last = {_name(member): member for member in sorted(known, key=lambda member: member["since"])}
    rows = [_row(member, why.get(_name(member), "") if member in last.values() else "", over) for member in known]
    if scored := _scored(noted):
        rows = [(*row[:-1], f"{row[-1]}; {scored}") if row[1] == "evaluator" else row for row in rows]
    rows += _others(attempt, {member["job"] for member in known if member["gone"] is None})
    rows += [(member, *[""] * 8, f"failed: {said}") for member, said in why.items() if member not in last]
    if not rows:
        return None
    table = Table(title="actors", caption=_aside(noted), box=box.SIMPLE_HEAD, pad_edge=False)
    table.title_justify = table.caption_justify = "left"
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in NUMBERS else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _noted(attempt: Path) -> dict[str, Any]:
    """What the coordinator has noted last; nothing before the first time."""
    path = attempt / TABLE
    return json.loads(path.read_text()) if path.exists() else {"members": [], "gone": []}


def _members(found: dict[str, Any]) -> list[dict[str, Any]]:
    there = {member["name"] for member in found["members"]}
    gone = [member for member in found["gone"] if member["name"] not in there]
    return [*sorted(found["members"], key=lambda member: (member["role"], member["since"])), *gone[-SHOWN_GONE:]]


def _scored(found: dict[str, Any]) -> str:
    """What the evaluator has found last; nothing before the first score."""
    scores = found.get("scores")
    return "version {version}: {success:.1%} of {prompts} prompts".format(**scores[-1]) if scores else ""


def _aside(found: dict[str, Any]) -> Text | None:
    """How many positions the learners have set aside, and why the last of those that actors could not play."""
    count = found.get("positions_set_aside", 0)
    last = list(found.get("reasons", {}).items())[-SHOWN_ASIDE:]
    lines = [f"positions set aside: {count}", *(f"position {position}: {why}" for position, why in last)]
    return Text("\n".join(lines)) if count else None


def _name(member: dict[str, Any]) -> str:
    """Of its folder: the same at every start of its task."""
    return member["name"].partition("+")[0]


def _does(member: dict[str, Any]) -> str:
    return "plays" if member["role"] == "actor" else "scores"


def _over(attempt: Path) -> str:
    """What is said of all members once nobody notes them any more; "" until then."""
    if is_finished(attempt):
        return "ended with the run"
    path = attempt / TABLE
    written = path.stat().st_mtime if path.exists() else time.time()
    return f"last heard of at {_clock(written)}" if time.time() - written > SILENT_SECONDS else ""


def _clock(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))


def _row(member: dict[str, Any], said: str, over: str) -> tuple[str, ...]:
    """`said` is why it failed, if it did and said so."""
    if member["gone"] is not None:
        words = f"gone since {_clock(member['gone'])}: {said or member['why']}"
    elif over:
        words = over
    else:
        words = _does(member) if member["version"] >= 0 else "waits for weights"
        words = f"in trouble: {member['trouble']}" if member["trouble"] else words
        words += ", hands weights on" if member["relay"] else ""
    return (
        member["name"],
        member["role"],
        member["node"],
        member["supernode"],
        f"{member['tokens_per_second']:.0f}",
        f"{member['episodes_per_second']:.2f}",
        f"{100 * member['utilisation']:.0f} %",
        str(member["version"]) if member["version"] >= 0 else "",
        "" if over or member["gone"] is not None else f"{member['in_flight']}/{member['slots']}",
        words,
    )


def _others(attempt: Path, joined: set[str]) -> list[tuple[str, ...]]:
    """Tasks that have not joined yet: they wait for a node, or start."""
    found: list[tuple[str, ...]] = []
    for array in read_arrays(attempt) if not is_finished(attempt) else []:
        try:
            tasks = living(attempt, array)
        except NoAnswer:
            continue
        found += [(task.job, *[""] * 8, task.state) for task in tasks if task.job not in joined]
    return found
