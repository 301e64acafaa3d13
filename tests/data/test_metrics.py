from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from data.metrics import Metrics, metric_shards, read_metrics


def logged(folder: Path, steps: range, commits: tuple[int, ...]) -> None:
    metrics = Metrics(folder, True)
    metrics.resume(steps.start - 1)
    for step in steps:
        metrics.log(step, loss=1.0 / step)
        if step in commits:
            metrics.commit(step)
    metrics.close()


def test_rows_come_back_in_order_with_null_where_a_metric_is_absent(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, True)
    metrics.log(1, loss=2.0)
    metrics.log(2, loss=1.5, validation_loss=3.0)
    metrics.commit(2)
    metrics.log(3, reward=1.0)
    metrics.commit(3)
    metrics.close()
    assert read_metrics(tmp_path).to_pylist() == [
        {"step": 1, "loss": 2.0, "validation_loss": None, "reward": None},
        {"step": 2, "loss": 1.5, "validation_loss": 3.0, "reward": None},
        {"step": 3, "loss": None, "validation_loss": None, "reward": 1.0},
    ]
    assert [path.name for path in metric_shards(tmp_path)] == ["step-000002.parquet", "step-000003.parquet"]


def test_after_a_resume_each_step_is_there_once(tmp_path: Path) -> None:
    logged(tmp_path, range(1, 8), commits=(2, 4, 6))  # stopped at 7, uncommitted; the checkpoint of 6 did not come
    logged(tmp_path, range(5, 9), commits=(6, 8))
    assert read_metrics(tmp_path)["step"].to_pylist() == list(range(1, 9))


def test_tensorboard_forgets_what_lies_beyond_the_resumed_step(tmp_path: Path) -> None:
    logged(tmp_path, range(1, 8), commits=())
    logged(tmp_path, range(5, 7), commits=())
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]


def test_only_the_first_rank_writes(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, False)
    metrics.resume(0)
    metrics.log(1, loss=1.0)
    metrics.commit(1)
    metrics.close()
    assert list(tmp_path.iterdir()) == []


def test_a_half_written_shard_is_no_shard(tmp_path: Path) -> None:
    logged(tmp_path, range(1, 3), commits=(2,))
    (tmp_path / "metrics" / "step-000004.parquet.writing").write_bytes(b"PAR1")
    assert read_metrics(tmp_path)["step"].to_pylist() == [1, 2]


def test_no_metrics_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no metrics"):
        read_metrics(tmp_path)


def test_a_commit_without_rows_writes_nothing(tmp_path: Path) -> None:
    logged(tmp_path, range(1, 2), commits=(1,))
    metrics = Metrics(tmp_path, True)
    metrics.commit(5)
    metrics.close()
    assert len(metric_shards(tmp_path)) == 1
    assert pq.read_table(metric_shards(tmp_path)[0]).num_rows == 1
