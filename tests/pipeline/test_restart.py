"""kill -9 of everything at random moments: the same command again ends with what an undisturbed run makes."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from checkpoints.manifest import Result

STAGES = ("synth", "sft", "rl", "evaluate")
RESULTS = {"synth": "", "sft": "model/", "rl": "", "evaluate": "rows/"}
"""Which of a stage's files have no clock in them, by the beginning of their names."""
START_SHARE = 0.2
"""The share of the moments that falls into a stage's start, before its first progress."""
MARK = "QIANKA_TEST_MARK"
COMMAND = [sys.executable, "-P", "-m", "workflow.cli", "run", "tiny.yaml", "--cores", "1"]


def moments() -> list[tuple[str, float]]:
    """20 seeded moments: five in each stage, one in each fifth of it."""
    numbers = random.Random(20)
    return [(stage, round((fifth + numbers.random()) / 5, 3)) for stage in STAGES for fifth in range(5)]


@dataclass(frozen=True)
class Course:
    """How long a stage took in the undisturbed run."""

    start_seconds: float
    work_seconds: float

    @classmethod
    def of(cls, run: Path, stage: str) -> "Course":
        attempt = Result(run / stage / "manifest.json").folder
        opened, ended = ((attempt / name).stat().st_mtime for name in ("attempt.json", "manifest.json"))
        working = json.loads((attempt / "progress.json").read_text())["started"]
        return cls(working - opened, ended - working)


def begin(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """The whole command in a session of its own, and the mark that all its processes carry."""
    mark = uuid.uuid4().hex
    with (folder / "killed.log").open("ab") as log:
        env = os.environ | {MARK: mark, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(COMMAND, cwd=folder, env=env, start_new_session=True, stdout=log, stderr=log), mark


def wait_until(process: subprocess.Popen[bytes], stage: Path, course: Course, moment: float) -> None:
    """Sleep until the stage has come to `moment` (0 to 1) of its course, or is faster and has its manifest."""

    def see(name: str) -> None:
        while not list(stage.glob(f"*-*/{name}")) and process.poll() is None:
            time.sleep(0.002)

    see("attempt.json")
    if moment < START_SHARE:
        seconds = moment / START_SHARE * course.start_seconds
    else:
        see("progress.json")
        seconds = (moment - START_SHARE) / (1 - START_SHARE) * course.work_seconds
    end = time.monotonic() + seconds
    while time.monotonic() < end and not list(stage.glob("*-*/manifest.json")) and process.poll() is None:
        time.sleep(0.002)


def kill_everything(process: subprocess.Popen[bytes], mark: str) -> int:
    """SIGKILL to every process that carries the mark, until none is left. Returns how many there were."""
    killed, quiet = 0, 0
    while quiet < 3:
        victims = list(marked(mark))
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        killed, quiet = killed + len(victims), 0 if victims else quiet + 1
        process.poll()
        time.sleep(0.02)
    return killed


def marked(mark: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def outcome(run: Path) -> dict[str, Any]:
    """Digests of the shards, weights, trajectories and rows, and the report's numbers."""
    found: dict[str, Any] = {}
    for stage, prefix in RESULTS.items():
        result = Result(run / stage / "manifest.json")
        for path in result.paths(prefix):
            if not path.is_relative_to(result.folder / "metrics"):
                found[f"{stage}/{path.relative_to(result.folder)}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    report = json.loads((run / "report.json").read_text())
    del report["lineage"]  # digests of manifests, and these tell how long things took
    found["report"] = without_clocks(report)
    return found


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_clocks(inner) for key, inner in value.items() if "second" not in key}
    return [without_clocks(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_the_undisturbed_run_learns_in_every_stage_that_trains(reference):
    """Otherwise the comparison below would say little."""
    results = [Result(reference / "runs/tiny" / stage / "manifest.json") for stage in ("sft", "rl")]
    assert len({result.manifest.weights_digest for result in results}) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "moment"), moments())
def test_a_run_that_is_killed_and_run_again_ends_as_if_nothing_had_happened(reference, tmp_path, stage, moment):
    before, run = reference / "runs" / "tiny", tmp_path / "runs" / "tiny"
    shutil.copy(reference / "tiny.yaml", tmp_path)
    shutil.copytree(reference / ".snakemake", tmp_path / ".snakemake")
    run.mkdir(parents=True)
    shutil.copy2(before / "config.json", run)
    for earlier in STAGES[: STAGES.index(stage)]:
        shutil.copytree(before / earlier, run / earlier)

    process, mark = begin(tmp_path)
    wait_until(process, run / stage, Course.of(before, stage), moment)
    assert kill_everything(process, mark) > 0, "the command had ended before it was killed"
    process.wait()

    done = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, start_new_session=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outcome(run) == outcome(before)
    assert not list(tmp_path.rglob("*.writing"))
