"""Requests for a small real stage, a fake Slurm on PATH, and the command `qianka stage` as a process."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from slurm.attempt import Request
from slurm.config import SlurmConfig
from workflow.config import load
from workflow.request import make_request

SMALL = ["synth.num_tasks=60", "synth.harder_tasks=5", "synth.block_tasks=30", "synth.workers=1"]


@pytest.fixture
def request_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Request]:
    """A request for the synth stage of a run in an empty working directory, whose own settings can be changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def make(*overrides: str, **settings: object) -> Request:
        request = make_request(load([*SMALL, *overrides]), "synth", 1)
        request.folder.mkdir(parents=True, exist_ok=True)
        return request.model_copy(update={"slurm": SlurmConfig(executor="local"), **settings})

    return make


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The fake's module, its commands first on PATH, its state in an empty folder."""
    path = Path(__file__).parent / "fake_slurm.py"
    spec = importlib.util.spec_from_file_location("fake_slurm", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install(tmp_path / "bin")
    (tmp_path / "slurm").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    return module


@pytest.fixture
def knob(tmp_path: Path) -> Callable[[str], Path]:
    """Turns a knob of the fake Slurm by its name, and returns the file, which `unlink` turns back."""

    def turn(name: str) -> Path:
        path = tmp_path / "slurm" / name
        path.touch()
        return path

    return turn


@pytest.fixture
def stage_command(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts `qianka stage synth` in the test's folder, in a session of its own, as a terminal would."""

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "workflow.cli", "stage", "synth", *arguments]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start
