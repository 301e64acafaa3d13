"""A run whose four stages have results, made without running any of them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints.manifest import commit_manifest
from slurm.attempt import publish
from slurm.claim import take_over
from slurm.record import accept, read_record, write_record
from slurm.wait.callers import WATCHED
from workflow.config import INPUTS, load
from workflow.paths import RunPaths
from workflow.request import make_request
from workflow.session import begin, release

ROOT = Path(__file__).parents[2]
CONFIG = "seed: 3\nrl: {steps: 4}\nslurm: {executor: local}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no caller above the test."""
    monkeypatch.chdir(tmp_path)
    for name in ("QIANKA_CALLERS", "QIANKA_LOCKED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture
def config(here: Path) -> Path:
    """The config file of the run."""
    path = here / "mine.yaml"
    path.write_text(CONFIG)
    return path


def finish_stages(arguments: list[str], *stages: str) -> None:
    """Give stages of a run, all by default, an (empty) result for their present config."""
    run = load(arguments)
    begin(run)
    release(run)
    os.environ.pop(WATCHED)
    for stage in stages or INPUTS:
        request = make_request(run, stage, 1)
        attempt = take_over(request, None).folder
        for name in request.publish:
            (attempt / name).write_text("{}")
        commit_manifest(attempt, [attempt / name for name in request.publish], {"rl_greedy": 0.5})
        publish(request.folder, attempt, request.publish)
        accept(request.folder)


@pytest.fixture
def finish(here: Path) -> Callable[..., None]:
    """`finish_stages` in the working directory of the test."""
    return finish_stages


def run_snakemake(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run snakemake; its output and errors come back as one text."""
    command = [sys.executable, "-P", "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "1", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd)


@pytest.fixture(scope="session")
def snakemake() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_snakemake`."""
    return run_snakemake


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run of mine.yaml that Snakemake takes for its own: it found every result finished."""
    folder, before = tmp_path_factory.mktemp("finished"), Path.cwd()
    (folder / "mine.yaml").write_text(CONFIG)
    os.chdir(folder)
    try:
        finish_stages(["mine.yaml"])
        for stage in INPUTS:
            RunPaths("mine").manifest(stage).unlink()
            record = read_record(RunPaths("mine").stage(stage))
            assert record
            write_record(RunPaths("mine").stage(stage), record.model_copy(update={"accepted": False}))
    finally:
        os.chdir(before)
    done = run_snakemake("--configfile", "mine.yaml", cwd=folder)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("found finished") == 4
    return folder
