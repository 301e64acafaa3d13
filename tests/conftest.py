"""Tests that need a real Slurm cluster are left out, aloud, where none can be started; under CI that is an error.

And what tests of several packages share.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoints.manifest import Provenance, digest

CLUSTER = Path(__file__).parent / "cluster" / "cluster.sh"
LEFT_OUT = pytest.StashKey[str]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [item for item in items if item.get_closest_marker("cluster")]
    if not wanted:
        return
    answer = subprocess.run(["bash", str(CLUSTER), "possible"], capture_output=True, text=True)
    if answer.returncode == 0:
        return
    message = f"{len(wanted)} cluster tests left out: {answer.stdout.strip()}"
    if os.environ.get("CI"):
        raise pytest.UsageError(f"{message}; CI may leave none out")
    config.stash[LEFT_OUT] = message
    config.hook.pytest_deselected(items=wanted)
    items[:] = [item for item in items if item not in wanted]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if message := config.stash.get(LEFT_OUT, ""):
        terminalreporter.section("left out")
        terminalreporter.line(message)


@pytest.fixture
def attempt(tmp_path: Path) -> Callable[[str, dict[str, Any]], Path]:
    """`attempt(stage, config)` opens an attempt folder, with the attempt.json that `slurm` would have written."""

    def opened(stage: str, config: dict[str, Any]) -> Path:
        folder = tmp_path / stage / f"{digest(config)[:12]}-{len(list(tmp_path.glob(f'{stage}/*')))}"
        folder.mkdir(parents=True)
        provenance = Provenance(
            stage=stage,
            attempt=folder.name,
            config=config,
            config_digest=digest(config),
            code_digest="of a test",
            code_version="",
        )
        provenance.write(folder)
        return folder

    return opened
