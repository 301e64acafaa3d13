"""Numbers over the steps of a stage: TensorBoard while it runs, immutable Parquet shards for what reads them later."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class Metrics:
    """`log` the values of a step, `commit` them just before the checkpoint that covers the step.

    Only the first rank writes; on the others nothing happens.
    """

    def __init__(self, folder: Path, job_is_first: bool) -> None:
        self.folder = folder
        self.writes = job_is_first
        self.rows: list[dict[str, float]] = []
        self.events = EventFileWriter(str(folder / "tensorboard"), flush_secs=10) if job_is_first else None

    def log(self, step: int, **values: float) -> None:
        """Note the values of `step`. To be called once for a step."""
        if self.events is None:
            return
        self.rows.append({"step": step, **values})
        self.show(step, values)

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Show the values of `step` in TensorBoard, and nowhere else."""
        if self.events is None or not values:
            return
        entries = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self.events.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=entries)))

    def commit(self, step: int) -> None:
        """Write the rows since the last commit to metrics/step-<step>.parquet, in one step; none for no rows."""
        if self.events is None or not self.rows:
            return
        self.events.flush()
        path = _shards(self.folder) / f"step-{step:06d}.parquet"
        path.parent.mkdir(exist_ok=True)
        names = sorted({name for row in self.rows for name in row} - {"step"})
        columns = [pa.array([int(row["step"]) for row in self.rows], pa.int64())]
        columns += [pa.array([row.get(name) for row in self.rows], pa.float64()) for name in names]
        aside = path.with_name(path.name + ".writing")
        with aside.open("wb") as stream:
            pq.write_table(pa.table(columns, names=["step", *names]), stream)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(path)
        self.rows = []

    def resume(self, step: int) -> None:
        """Drop what lies beyond `step`, the one of the checkpoint from which the stage goes on (0 for none)."""
        if self.events is None:
            return
        self.rows = []
        for path in _shards(self.folder).glob("step-*.parquet"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()
        restart = SessionLog(status=SessionLog.START)  # TensorBoard then forgets the steps after this one
        self.events.add_event(Event(wall_time=time.time(), step=step + 1, session_log=restart))

    def close(self) -> None:
        """Flush the TensorBoard events."""
        if self.events is not None:
            self.events.close()


def read_metrics(folder: Path) -> pa.Table:
    """All committed rows of the stage in `folder`: a column `step`, and one for each metric, null where absent.

    Raises ValueError when there are none.
    """
    paths = metric_shards(folder)
    if not paths:
        raise ValueError(f"{_shards(folder)}: no metrics (*.parquet)")
    return pa.concat_tables([pq.read_table(path) for path in paths], promote_options="default").sort_by("step")


def metric_shards(folder: Path) -> list[Path]:
    """The committed shards of the stage in `folder`, in the order of their steps."""
    return sorted(_shards(folder).glob("step-*.parquet"))


def _shards(folder: Path) -> Path:
    return folder / "metrics"
