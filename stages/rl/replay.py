"""Rebuild a batch that asynchronous mode has trained on, from the log of batches and the trajectories of its step."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as compute
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer

from data.trajectories import Trajectories, read_trajectories
from stages.rl.batch_log import FOLDER, REJECTED, Logged, digest, read_batches
from stages.rl.choice import staleness
from stages.rl.prompts import request_seed

TRAJECTORIES = "trajectories"
"""Folder of the attempt, as in `stages.rl.step_files`."""


class Rebuilt(NamedTuple):
    """A group of a batch."""

    row: Logged
    group: Trajectories | None
    """None where no file has its place, and where there was nothing to learn from it."""
    wrong: str
    """Why it is not the group that was trained on; empty where it is."""


def rebuild(folder: Path, step: int, seed: int) -> list[Rebuilt]:
    """The groups of the batch of `step` of the attempt `folder`, in their order; `seed` is the run's.

    Each is compared with the digest of what the update read, and its seeds with those of its position and attempt.
    ValueError where the log has no such step.
    """
    table = read_batches(folder)
    rows = [Logged(**row) for row in table.filter(compute.field("step") == step).to_pylist()]
    if not rows:
        steps = table["step"].unique().to_pylist()
        raise ValueError(f"{folder / FOLDER}: no step {step}; the log has steps {min(steps)} to {max(steps)}")
    groups, learned_first = _groups(folder, step), lambda row: (row.place == REJECTED, row.place, row.position)
    return [_compared(row, groups.get(row.place), seed) for row in sorted(rows, key=learned_first)]


def show(console: Console, rebuilt: Sequence[Rebuilt], tokenizer: Path) -> int:
    """Print the batch as a table, and its best sample as text; the exit code, 1 where something is missing.

    `tokenizer` is a Hugging Face tokenizer.json.
    """
    first = rebuilt[0].row
    table = Table(title=f"batch of step {first.step}, learned by version {first.version}", title_justify="left")
    for column in ("place", "prompt", "position", "attempt", "actor", "lease"):
        table.add_column(column)
    for column in ("rank", "shard", "versions", "staleness"):
        table.add_column(column, no_wrap=column == "versions")
    for column in ("rewards", "tokens", "first seed", "digest"):
        table.add_column(column)
    for one in rebuilt:
        table.add_row(*map(Text, _cells(one)))
    console.print(table)
    there = [one for one in rebuilt if one.group is not None and not one.wrong]
    if there:
        console.print(Text(_sample(there, Tokenizer.from_file(str(tokenizer)))))
    wrong = [one for one in rebuilt if one.wrong]
    for one in wrong:
        console.print(Text(f"place {one.row.place}, position {one.row.position}: {one.wrong}"))
    rejected = sum(one.row.place == REJECTED for one in rebuilt)
    learned = len(rebuilt) - rejected
    whole = f"all {learned} groups are those that were trained on, bit for bit"
    console.print(f"{len(wrong)} of {learned} groups cannot be rebuilt" if wrong else whole)
    if rejected:
        console.print(f"from {rejected} more there was nothing to learn")
    return int(bool(wrong))


def _groups(folder: Path, step: int) -> dict[int, Trajectories]:
    """By place, what the ranks have learned from in `step` (`stages.rl.step_files`)."""
    found: dict[int, Trajectories] = {}
    for path in sorted((folder / TRAJECTORIES).glob(f"step-{step:06d}-*.h5")):
        shares, _ = read_trajectories(path)
        for place in np.unique(shares.groups).tolist():
            found[place] = shares.pick(np.flatnonzero(shares.groups == place))
    return found


def _compared(row: Logged, group: Trajectories | None, seed: int) -> Rebuilt:
    if row.place == REJECTED:
        return Rebuilt(row, None, "")
    if group is None:
        return Rebuilt(row, None, f"no file {TRAJECTORIES}/step-{row.step:06d}-rank-{row.rank:04d}.h5 has it")
    if digest(group).hex() != row.digest:
        return Rebuilt(row, group, "its samples are not those that were trained on")
    seeds = [request_seed(seed, row.position, row.attempt, sample) for sample in range(row.samples)]
    if group.seeds.tolist() != seeds:
        return Rebuilt(row, group, f"its seeds are not those of position {row.position}, attempt {row.attempt}")
    return Rebuilt(row, group, "")


def _cells(one: Rebuilt) -> list[str]:
    row, group = one.row, one.group
    rewards = "" if group is None else " ".join(f"{reward:.2g}" for reward in group.rewards.tolist())
    first = "" if group is None else str(group.seeds[0])
    versions = f"{row.oldest}" if row.oldest == row.newest else f"{row.oldest} to {row.newest}"
    found = "missing" if group is None else "another" if one.wrong else "same"
    return [
        *(str(row.place), row.prompt_id[:12], str(row.position), str(row.attempt)),
        *(row.member, row.lease, str(row.rank), str(row.shard), versions, str(staleness(row.oldest, row.version))),
        *(rewards, str(row.tokens), first, "rejected" if row.place == REJECTED else found),
    ]


def _sample(rebuilt: Sequence[Rebuilt], tokenizer: Tokenizer) -> str:
    """The sample with the highest reward, as text."""
    groups = [one.group for one in rebuilt if one.group is not None]
    place = max(range(len(groups)), key=lambda index: float(groups[index].rewards.max()))
    group, row = groups[place], rebuilt[place].row
    index = int(group.rewards.argmax())
    tokens, _ = group.sequence(index)
    length = int(group.prompt_lengths[index])
    prompt, said = (tokenizer.decode(part.tolist()) for part in (tokens[:length], tokens[length:]))
    reward, seed = float(group.rewards[index]), int(group.seeds[index])
    return f"place {row.place}, sample {index}, seed {seed}, reward {reward:.4g}\nprompt: {prompt}\nanswer: {said}"
