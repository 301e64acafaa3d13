"""How each actor was at each step, in asynchronous mode: rows beside the metrics, and curves in TensorBoard.

Actors come and go by the hundred, so the metrics have their means alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from stages.rl.coordinator.members import MemberState
from stages.rl.rows import RowLog

FOLDER = "rates"
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("member", pa.string()),
        ("node", pa.string()),
        ("tokens_per_second", pa.float64()),
        ("episodes_per_second", pa.float64()),
        ("utilisation", pa.float64()),  # share of the time in which its engine generated
        ("device", pa.float64()),  # utilisation of its card by the driver's measure; null where nobody measures it
        ("staleness", pa.int32()),  # updates that its weights are behind those of the learners
        ("sequences", pa.int32()),  # that it plays
    ]
)
MOST_CURVES = 64
"""TensorBoard gets curves of so many actors, the first ones by name; the rows have them all."""


class Rate(NamedTuple):
    """A row of the log; see SCHEMA."""

    step: int
    member: str
    node: str
    tokens_per_second: float
    episodes_per_second: float
    utilisation: float
    device: float | None
    staleness: int
    sequences: int


def rates_log(folder: Path, job_is_first: bool) -> RowLog:
    """`folder` is that of the attempt."""
    return RowLog(folder / FOLDER, SCHEMA, job_is_first)


def rates_of(step: int, version: int, members: Sequence[MemberState]) -> list[Rate]:
    """The rows of `step`, after which the learners have `version`; an evaluator plays nothing and has none."""
    return [
        Rate(
            step, one.name, one.node, one.tokens_per_second, one.episodes_per_second, one.utilisation, one.device,
            max(0, version - one.version) if one.version >= 0 else 0, one.in_flight,
        )
        for one in members
        if one.role == "actor" and one.gone is None
    ]  # fmt: skip


def curves(rates: Sequence[Rate]) -> dict[str, float]:
    """The utilisation of each, for TensorBoard."""
    shown = sorted(rates, key=lambda rate: rate.member)[:MOST_CURVES]
    return {f"utilisation_of/{rate.member}": rate.utilisation for rate in shown}
