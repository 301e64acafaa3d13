"""`qianka replay`: a batch that the rl stage of a run has trained on."""

import sys

from rich.console import Console

from checkpoints.manifest import ATTEMPT, Provenance, Result
from stages.rl.replay import rebuild, show
from workflow.jobs import find_run, record_of


def replay_batch(run: str | None, step: int) -> int:
    """Show the batch of `step`; the exit code, 1 where something of it is missing. ValueError for what is not there."""
    paths = find_run(run)
    folder = paths.stage("rl")
    attempt = folder / record_of(folder).attempt
    seed = int(Provenance.model_validate_json((attempt / ATTEMPT).read_bytes()).config["seed"])
    sft = Result(paths.manifest("sft"), look_at_files=False).folder
    console = Console(width=None if sys.stdout.isatty() else 160)
    return show(console, rebuild(attempt, step, seed), sft / "model" / "tokenizer.json")
