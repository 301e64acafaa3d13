"""Where a run stands: its stages and jobs, how far they are, what they measured, and where each number comes from."""

from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from checkpoints.manifest import Manifest, Result
from data.progress import read_progress
from data.warnings import read_warnings
from slurm.query.queue import NoAnswer
from slurm.record import Record, is_finished, read_record
from slurm.verdict import explain
from slurm.wait import state
from slurm.wait.display import pace
from slurm.wait.state import Kind
from workflow.actors import actors_table
from workflow.config import INPUTS
from workflow.paths import RunPaths

SHOWN_METRICS = {
    "synth": ("rows_train", "accepted_share", "grader_errors"),
    "sft": ("loss", "validation_loss"),
    "rl": ("reward_first", "reward_last", "success_last"),
    "evaluate": ("base_greedy", "sft_greedy", "rl_greedy"),
}
"""Of those in a stage's manifest."""
SHOWN_WARNINGS = 3
"""The last ones of a stage; the job's log and the dashboard have all."""


def render(name: str) -> RenderableType:
    """The table of the stages; below it what looks wrong in how one learns, and the lineage of the last result."""
    paths = RunPaths(name)
    table = Table(title=f"run {name}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("stage", "state and job", "attempt", "progress", "metrics"):
        table.add_column(column, overflow="fold", no_wrap=column in ("stage", "attempt"))
    for stage in INPUTS:
        table.add_row(stage, *(Text(cell) for cell in _cells(paths, stage)))
    last = next((stage for stage in reversed(INPUTS) if paths.manifest(stage).exists()), None)
    attempt = _attempt(paths, "rl")
    actors = actors_table(attempt) if attempt else None
    parts: list[RenderableType] = [
        table,
        *([actors] if actors else []),
        *(Text(line, style="yellow") for line in warnings(paths)),
    ]
    if last:
        parts.append(lineage(paths, last))
    if paths.dashboard.exists():
        parts.append(Text(f"dashboard: {paths.dashboard}"))
    return Group(*parts)


def _cells(paths: RunPaths, stage: str) -> tuple[str, str, str, str]:
    folder = paths.stage(stage)
    try:
        record = read_record(folder) if folder.is_dir() else None
        manifest = Result(paths.manifest(stage)).manifest if paths.manifest(stage).exists() else None
    except ValueError as error:
        return f"damaged: {error}", "", "", ""
    attempt = record.attempt if record else manifest.attempt if manifest else ""
    progress, last = _progress(folder / attempt) if attempt else ("", "")
    if manifest and (record is None or record.attempt == manifest.attempt):
        return f"done{_job(record)}", attempt, progress, _metrics(manifest)
    if record is None:
        return "not started", "", "", ""
    return f"{_state(folder, record)}{_job(record)}", attempt, progress, last


def _state(folder: Path, record: Record) -> str:
    try:
        found = state.query(folder, record)
    except (NoAnswer, ValueError) as error:
        return f"unknown: {error}"
    if found.kind is Kind.ENDED:
        return trouble(folder, record) or f"interrupted ({found.text})"
    return "finished, not published" if found.kind is Kind.FINISHED else found.text


def trouble(folder: Path, record: Record) -> str:
    """Why the last job of the stage in `folder` gave no result, as far as its ranks, or Slurm of them, said so."""
    verdict = explain(folder / record.attempt, record.job_id)
    if verdict is None:
        return ""
    return f"stopped: {verdict.message}" if verdict.why == "stopped" else f"failed: {verdict.message}"


def troubles(name: str) -> list[str]:
    """One line for each stage of a run whose last job said why it gave no result."""
    paths, lines = RunPaths(name), list[str]()
    for stage in INPUTS:
        folder = paths.stage(stage)
        record = read_record(folder) if folder.is_dir() else None
        found = trouble(folder, record) if record and not is_finished(folder / record.attempt) else ""
        if found:
            lines.append(f"{stage} {found} (log: {paths.log(stage)})")
    return lines


def _job(record: Record | None) -> str:
    if record is None or record.job_id is None:
        return ""
    return f"\njob {record.job_id}" if record.executor == "slurm" else f"\nprocess {record.job_id} on {record.host}"


def _progress(attempt: Path) -> tuple[str, str]:
    """How far an attempt is, and what its last step measured."""
    reading = read_progress(attempt)
    if reading is None:
        return "", ""
    done = f"{reading['done']}/{reading['total']} {reading['unit']}"
    rest = "" if reading["done"] == reading["total"] else f", {pace(reading)}"
    return done + rest, str(reading["message"]).replace(", ", "\n")


def warnings(paths: RunPaths) -> list[str]:
    """A line for each of the last warnings of the stages' present attempts."""
    lines: list[str] = []
    for stage in INPUTS:
        attempt = _attempt(paths, stage)
        found = read_warnings(attempt) if attempt else []
        if len(found) > SHOWN_WARNINGS:
            lines.append(f"warning: {stage} has {len(found)} warnings; the last ones are:")
        lines += [f"warning: {stage}, {warned}" for warned in found[-SHOWN_WARNINGS:]]
    return lines


def _attempt(paths: RunPaths, stage: str) -> Path | None:
    """The folder of the stage's last attempt, as far as anything says which that is."""
    folder = paths.stage(stage)
    try:
        record = read_record(folder) if folder.is_dir() else None
        if record is not None:
            return folder / record.attempt
        return Result(paths.manifest(stage), look_at_files=False).folder if paths.manifest(stage).exists() else None
    except ValueError:
        return None  # the table says what is damaged


def _metrics(manifest: Manifest) -> str:
    found = {key: manifest.metrics.get(key) for key in SHOWN_METRICS[manifest.stage]}
    return "\n".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in found.items()
        if value is not None
    )


def lineage(paths: RunPaths, stage: str) -> Tree:
    """What the result of a stage was made from, back to the rule engine and its seed."""
    tree = Tree(Text("lineage"))
    _grow(tree, paths, stage, "")
    return tree


def _grow(tree: Tree, paths: RunPaths, stage: str, wanted: str) -> None:
    """Add the stage and what it read; each stage names its inputs by the digest of their manifests."""
    if not paths.manifest(stage).exists():
        tree.add(Text(f"{stage} {wanted[:12]}: not published now"))
        return
    try:
        result = Result(paths.manifest(stage))
    except ValueError:
        tree.add(Text(f"{stage} {wanted[:12]}: damaged"))
        return
    if wanted and result.digest != wanted:
        tree.add(Text(f"{stage} {wanted[:12]}: replaced by {result.manifest.attempt} since"))
        return
    branch = tree.add(Text(_origin(result.manifest)))
    for name in INPUTS[stage][-1:]:  # the nearest input; it names the ones before it, which this stage has read too
        _grow(branch, paths, name, result.manifest.inputs[name])


def _origin(manifest: Manifest) -> str:
    """One line: the attempt, the code, the digests, and for the first stage the rule engine and its seed."""
    parts = [f"{manifest.stage} {manifest.attempt}", f"code {manifest.code_version or manifest.code_digest[:12]}"]
    for label, value in (
        ("weights", manifest.weights_digest),
        ("tokenizer", manifest.tokenizer_digest),
        ("environment", manifest.environment_hash),
    ):
        if value:
            parts.append(f"{label} {value[:12]}")
    if not manifest.inputs:
        parts.append(f"rule engine {manifest.config['environment']['name']}, seed {manifest.config['seed']}")
    return ", ".join(parts)
