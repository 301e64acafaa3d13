"""How each actor was at each step: rows, and curves in TensorBoard."""

from pathlib import Path

import pyarrow.parquet as pq

from stages.rl.coordinator.members import MemberState
from stages.rl.rates import MOST_CURVES, SCHEMA, curves, rates_log, rates_of
from stages.rl.rows import row_files


def member(number: int, role: str = "actor", version: int = 7, gone: float | None = None) -> MemberState:
    return MemberState(
        name=f"m{number:03d}", role=role, node="n1", since=0.0, tokens_per_second=10.0 * number,
        episodes_per_second=1.0, utilisation=0.9, version=version, in_flight=4, gone=gone,
    )  # fmt: skip


def test_actors_that_play_have_a_row_a_step_and_an_evaluator_has_none(tmp_path: Path) -> None:
    log = rates_log(tmp_path, True)
    for step in (1, 2):
        log.add(rates_of(step, 9, [member(1), member(2, version=-1), member(3, "evaluator"), member(4, gone=5.0)]))
    log.commit(2)
    (path,) = row_files(tmp_path / "rates")
    table = pq.read_table(path)
    assert table.schema.equals(SCHEMA)
    assert table["step"].to_pylist() == [1, 1, 2, 2]
    assert table["member"].to_pylist() == ["m001", "m002"] * 2
    assert table["staleness"].to_pylist() == [2, 0] * 2 and table["device"].to_pylist() == [None] * 4


def test_what_lies_beyond_the_checkpoint_is_dropped_and_other_ranks_write_nothing(tmp_path: Path) -> None:
    log, other = rates_log(tmp_path, True), rates_log(tmp_path, False)
    for step in (2, 4):
        log.add(rates_of(step, 9, [member(1)]))
        other.add(rates_of(step, 9, [member(1)]))
        log.commit(step)
    other.commit(6)
    other.resume(2)
    assert len(row_files(tmp_path / "rates")) == 2
    log.resume(2)
    assert [path.name for path in row_files(tmp_path / "rates")] == ["step-000002.parquet"]


def test_five_hundred_actors_are_rows_but_not_so_many_curves() -> None:
    rates = rates_of(1, 9, [member(number) for number in range(512)])
    assert len(rates) == 512 and len(curves(rates)) == MOST_CURVES
