"""Rebuild a batch that was trained on in asynchronous mode: from the log of batches and the journals, nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.compute as compute
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer

from data.segments import Origin, read_groups, read_origins
from data.trajectories import Trajectories
from stages.rl.batches import FOLDER, Logged, digest, read_batches

SEGMENTS = "trajectories/groups-*.h5"
"""Of the shards' journals, in the attempt's folder (`stages.rl.store.journal`); their names say which positions."""


class Rebuilt(NamedTuple):
    """A group of a batch."""

    row: Logged
    group: Trajectories | None
    """None where no journal has what was trained on."""
    member: str
    """The actor that ended it."""
    wrong: str
    """Why it is not the group that was trained on; empty where it is."""


def rebuild(folder: Path, step: int) -> list[Rebuilt]:
    """The groups of the batch of `step` of the attempt `folder`, in their order.

    Each is compared with the digest of what the update read. ValueError where the log has no such step.
    """
    table = read_batches(folder)
    rows = [Logged(**row) for row in table.filter(compute.field("step") == step).to_pylist()]
    if not rows:
        steps = table["step"].unique().to_pylist()
        raise ValueError(f"{folder / FOLDER}: no step {step}; the log has steps {min(steps)} to {max(steps)}")
    segments = _segments(folder, {row.position for row in rows})
    return [_rebuild(row, segments) for row in sorted(rows, key=lambda row: row.place)]


def show(console: Console, rebuilt: Sequence[Rebuilt], tokenizer: Path) -> int:
    """Print the batch as a table, and its best sample as text; the exit code, 1 where something is missing.

    `tokenizer` is a Hugging Face tokenizer.json.
    """
    first = rebuilt[0].row
    table = Table(title=f"batch of step {first.step}, learned by version {first.version}", title_justify="left")
    for column in ("place", "prompt", "position", "attempt", "actor", "rank", "shard", "versions", "staleness"):
        table.add_column(column, no_wrap=column == "versions")
    for column in ("rewards", "tokens", "digest"):
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
    whole = f"all {len(rebuilt)} groups are those that were trained on, bit for bit"
    console.print(f"{len(wrong)} of {len(rebuilt)} groups cannot be rebuilt" if wrong else whole)
    return int(bool(wrong))


def _segments(folder: Path, positions: set[int]) -> dict[tuple[int, int], list[tuple[Path, int, Origin]]]:
    """Where the whole groups of these positions are: by (position, attempt) their files and places."""
    found: dict[tuple[int, int], list[tuple[Path, int, Origin]]] = {}
    for path in sorted(folder.glob(SEGMENTS)):
        first, last = map(int, path.stem.split("-")[1:3])
        if not any(first <= position <= last for position in positions):
            continue
        for place, entry in enumerate(read_origins(path)):
            if entry.whole and entry.position in positions:
                found.setdefault((entry.position, entry.attempt), []).append((path, place, entry))
    return found


def _rebuild(row: Logged, segments: dict[tuple[int, int], list[tuple[Path, int, Origin]]]) -> Rebuilt:
    """A group may have been played twice, by an actor that was thought dead; the digest says which one it was."""
    candidates = segments.get((row.position, row.attempt), [])
    for path, place, entry in candidates:
        (group,) = read_groups(path, [place])
        if digest(group).hex() == row.digest:
            return Rebuilt(row, group, entry.member, "")
    if not candidates:
        return Rebuilt(row, None, "", f"no journal has attempt {row.attempt}: its file is gone from trajectories/")
    names = ", ".join(path.name for path, _, _ in candidates)
    return Rebuilt(row, None, candidates[0][2].member, f"what {names} has is not what was trained on")


def _cells(one: Rebuilt) -> list[str]:
    row, group = one.row, one.group
    rewards = "" if group is None else " ".join(f"{reward:.2g}" for reward in group.rewards.tolist())
    versions = f"{row.oldest}" if row.oldest == row.newest else f"{row.oldest} to {row.newest}"
    return [
        *(str(row.place), row.prompt_id[:12], str(row.position), str(row.attempt), one.member or "?"),
        *(str(row.rank), str(row.shard), versions, str(row.version - row.oldest)),
        *(rewards, str(row.tokens), "missing" if one.wrong else "same"),
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
