"""What can be found wrong before a node is asked for. Knows no torch."""

import json
import math
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from checkpoints.commit import commit
from checkpoints.disk import REASONS
from data.job import check_shards
from slurm.query.queue import choose_executor
from stages.environments.config import RowsConfig
from workflow.config import INPUTS, RunConfig
from workflow.paths import RunPaths

CHECKED_ROWS = 1000
CARDS = ("/dev/nvidiactl", "/dev/mxcd")
"""One of them is there on a machine with cards."""


def check_config(run: RunConfig) -> None:
    """Raise ValueError with the key, the path and what to do, for the first thing that would make the run fail."""
    check_model(run)
    check_rows(run)
    check_algorithm(run)
    check_rewards(run)
    check_engine(run)
    check_resources(run)
    check_mode(run)


def check_model(run: RunConfig) -> None:
    """The model folder is one that transformers can load."""
    if not run.model.folder:
        return
    folder = Path(run.model.folder)
    wanted = "a Hugging Face folder (config.json, safetensors, tokenizer)"
    if not folder.is_dir():
        beside = "" if folder.is_absolute() else f", neither in {Path.cwd()} nor beside the config file"
        raise ValueError(f"model.folder: there is no folder {folder}{beside}; it should be {wanted}")
    if not (folder / "config.json").exists():
        raise ValueError(f"model.folder: {folder} has no config.json; it should be {wanted}")
    if not any(folder.glob("*.safetensors")):
        raise ValueError(f"model.folder: {folder} has no *.safetensors file; it should be {wanted}")


def check_rows(run: RunConfig) -> None:
    """The user's own files parse, as far as the first rows show."""
    if not isinstance(run.environment, RowsConfig):
        return
    if not run.environment.path:
        raise ValueError("environment.path is empty; name the .jsonl or .parquet file that holds your rows")
    from data.user_rows import check_user_file

    for key in ("path", "harder_path"):
        value = getattr(run.environment, key)
        if not value:
            continue
        try:
            check_user_file(Path(value), CHECKED_ROWS)
        except ValueError as error:
            raise ValueError(f"environment.{key}: {error}") from error


def check_algorithm(run: RunConfig) -> None:
    """The algorithm is there, and its graph can be executed."""
    from stages.algorithms.load import load_algorithm

    load_algorithm(run.rl.algorithm)


def check_rewards(run: RunConfig) -> None:
    """The terms of the reward are there, the user's own too, and take the values that they are given."""
    from stages.environments.rewards import load_terms

    load_terms(run.rl.rewards)


def check_engine(run: RunConfig) -> None:
    """A vLLM that is to generate on this machine is there and can run the model. Nodes may have one of their own."""
    if run.engine.name == "torch" or choose_executor(run.slurm) != "local":
        return
    if find_spec("vllm") is None:
        raise ValueError(
            f"engine.name is {run.engine.name}, but there is no vllm here; on a machine without cards install it with "
            "`pip install '.[vllm]'` (docs/engines.md), or take engine.name=torch"
        )
    size = head_size(run)
    if size is not None and not any(Path(device).exists() for device in CARDS):
        from stages.rollout.vllm.heads import check_cpu_heads

        check_cpu_heads(size)


def head_size(run: RunConfig) -> int | None:
    """Of the model's attention; None where its config.json does not tell."""
    sizes = run.model.architecture
    if not run.model.folder:
        return sizes.hidden_size // sizes.num_heads
    config = json.loads((Path(run.model.folder) / "config.json").read_text())
    if "hidden_size" in config and config.get("num_attention_heads"):
        return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return None


def check_resources(run: RunConfig) -> None:
    """The executor is there and can give the shape that is asked for, and the environment comes in time."""
    from slurm.inside.environment import check_environment

    check_environment(run.slurm.environment)
    for stage in INPUTS:
        shape = run.slurm.resources(stage)
        check_shards(shape.shard_ranks, shape.nodes * shape.tasks_per_node, f"slurm.{stage}.shard_ranks")
    executor = choose_executor(run.slurm)
    if executor == "slurm":
        check_minutes(run)
        missing = [command for command in ("sbatch", "srun", "squeue") if shutil.which(command) is None]
        if missing:
            raise ValueError(f"slurm.executor is slurm, but there is no {missing[0]} here; take slurm.executor=local")
        return
    for stage in INPUTS:
        nodes = getattr(run.slurm, stage).nodes
        if nodes > 1:
            raise ValueError(f"slurm.{stage}.nodes is {nodes}, but without Slurm there is one; set it to 1")


def check_mode(run: RunConfig) -> None:
    """What asynchronous mode asks of the algorithm, the engine and the actors."""
    if run.rl.mode != "asynchronous":
        return
    if run.rl.asynchronous.stale == "keep":
        check_keep(run)
    if run.engine.name == "vllm_server":
        raise ValueError(
            "engine.name is vllm_server, but in asynchronous mode each actor has an engine of its own; "
            "take engine.name=vllm, or rl.mode=synchronous"
        )
    if run.slurm.actors.shard_ranks is not None:
        raise ValueError("slurm.actors.shard_ranks: actors hold whole copies of the weights; remove it")
    if choose_executor(run.slurm) != "slurm" and run.slurm.actors.nodes > 1:
        raise ValueError(f"slurm.actors.nodes is {run.slurm.actors.nodes}, but without Slurm there is one; set it to 1")


def check_keep(run: RunConfig) -> None:
    """An algorithm that learns from samples of any age weighs them by it."""
    from stages.algorithms.load import load_algorithm

    if not load_algorithm(run.rl.algorithm).corrects_for_age:
        raise ValueError(
            f"rl.asynchronous.stale is keep, but the loss of the algorithm {run.rl.algorithm} has no ratio to "
            "rollout_logprobs (a metric or a KL term does not count), so it cannot correct for samples of older "
            "weights; take stale: requeue, or an algorithm that does, such as grpo"
        )


def check_minutes(run: RunConfig) -> None:
    """A job has time to work before it is told that its time is nearly over: else it is requeued for ever."""
    seconds = run.slurm.signal_seconds
    for stage in (*INPUTS, *(["actors"] if run.rl.mode == "asynchronous" else [])):
        minutes = run.slurm.resources(stage).minutes
        if 60 * minutes < 2 * seconds:
            raise ValueError(
                f"slurm.{stage}.minutes is {minutes}, but slurm.signal_seconds has the job told to commit {seconds} s "
                f"before; give it {math.ceil(2 * seconds / 60)} minutes, or make slurm.signal_seconds {30 * minutes}"
            )


def check_cluster(run: RunConfig, stages: Sequence[str]) -> None:
    """Slurm has what the jobs of `stages` ask for, and what will make them wait is said."""
    if not stages:
        return
    from slurm.ask.check import check_slurm

    for note in check_slurm(run.slurm, stages, RunPaths(run.name).folder.resolve()):
        print(f"note: {note}", file=sys.stderr)


def make_folder(folder: Path) -> None:
    """Make the run's folder, for its owner alone; one that is there keeps the mode that its owner gave it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)


def check_folder(folder: Path) -> None:
    """The run folder is there, and takes files."""
    probe = folder / ".probe"
    try:
        make_folder(folder)
        with suppress(FileNotFoundError):  # another command tries it at the same moment, and has moved or removed it
            with commit(probe) as aside:
                aside.write_bytes(os.urandom(4096))
            probe.unlink()
    except OSError as error:
        refused = "you may not write there" if isinstance(error, PermissionError) else error.strerror
        reason = REASONS.get(error.errno or 0, refused)
        raise ValueError(
            f"{folder.resolve()}: cannot write the run's files: {reason}; free some space, change the permissions, or "
            "work in another folder"
        ) from error
