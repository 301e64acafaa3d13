"""The programs that serve the actors of an asynchronous run: which rank begins which, and what it is told."""

import secrets
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from stages.rl.children import Children, endpoint
from stages.rl.config import StageConfig
from stages.rl.step_files import StepFiles
from stages.trainer.device import address_of

CANDIDATES = 3
"""Of Raft: one may be lost."""


def shard_name(rank: int) -> str:
    """Of the shard of a rank."""
    return f"shard-{rank:04d}"


def begin_shard(children: Children, config: StageConfig, step_files: StepFiles) -> None:
    """The shard of this rank; its groups have the reward terms of `step_files`."""
    job, settings = children.job, config.rl.asynchronous
    name = shard_name(job.rank)
    children.begin(
        name,
        "stages.rl.store",
        [
            *("--announce", str(endpoint(children.folder, name)), "--host", address_of(job)),
            *("--folder", str(children.folder), "--shard", str(job.rank), "--shards", str(job.world_size)),
            *("--bytes", str(settings.store_bytes)),
            *("--terms", ",".join(step_files.terms), "--environment-hash", step_files.environment_hash),
            *(["--tls"] if settings.tls else []),
        ],
    )


def begin_weights(children: Children, config: StageConfig, weights: Path) -> None:
    """The weights server, which hands out the files in the folder `weights`. Rank 0 alone has one."""
    job = children.job
    children.begin(
        "weights",
        "stages.rl.weights",
        [
            *("--announce", str(endpoint(children.folder, "weights")), "--host", address_of(job)),
            *("--supernode", job.supernode, "--folder", str(weights)),
            *(["--tls"] if config.rl.asynchronous.tls else []),
        ],
    )


def begin_coordinator(children: Children, config: StageConfig) -> None:
    """One candidate on each of the learners' first nodes; they elect one. All ranks call it together."""
    job, folder = children.job, children.folder
    nodes, learners = _everyones([job.node, secrets.token_hex(8)])
    firsts = [nodes.index(node) for node in candidates(nodes)]
    if job.is_first:
        endpoint(folder, "coordinator").unlink(missing_ok=True)
    if job.rank not in firsts:
        return
    candidate = firsts.index(job.rank)
    children.begin(
        f"candidate-{candidate}",
        "stages.rl.coordinator",
        [
            *("--attempt", str(folder), "--host", address_of(job), "--supernode", job.supernode),
            *("--shards", str(job.world_size)),
            *("--candidate", str(candidate), "--candidates", str(len(firsts))),
            *("--learners", learners[0], "--config", config.rl.asynchronous.model_dump_json()),
        ],
    )


def candidates(nodes: Sequence[str]) -> list[str]:
    """The nodes that have one each: three, or one, since two could not lose any."""
    different = list(dict.fromkeys(nodes))[:CANDIDATES]
    return different if len(different) == CANDIDATES else different[:1]


def _everyones(mine: list[str]) -> list[list[str]]:
    """For each of the strings of a rank, those of all ranks. All ranks call it together."""
    found: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, mine)
    return [list(column) for column in zip(*found, strict=True)]
