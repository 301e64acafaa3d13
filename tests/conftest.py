"""What all tests share: attempt folders, a config of seconds, the command `qianka`, and the rule for cluster tests.

Tests that need a real Slurm cluster are left out, aloud, where none can be started; under CI that is an error.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from checkpoints.manifest import Provenance, digest

# How long an example takes is nothing that a test promises: this machine may do anything beside.
hypothesis.settings.register_profile("qianka", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("qianka")

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


TINY = """\
seed: 3
environment: {name: arithmetic, modulus: 4, operators: [1, 2], harder_operators: [3], misread_rate: 0, space_rate: 0}
model:
  architecture: {hidden_size: 32, num_layers: 1, num_heads: 2, num_key_value_heads: 1, intermediate_size: 64}
synth: {num_tasks: 1200, block_tasks: 20, shard_rows: 100, harder_tasks: 16, workers: 1}
sft:
  learning_rate: 0.01
  steps: 120
  batch_sequences: 16
  checkpoint: {every_steps: 10}
  validate_every_steps: 20
rl:
  steps: 12
  prompts_per_step: 8
  samples_per_prompt: 4
  sampling: {max_new_tokens: 16, slots: 16}
  checkpoint: {every_steps: 2}
evaluate:
  num_prompts: 16
  num_harder: 8
  num_perturbed: 4
  num_sampled_prompts: 4
  samples_per_prompt: 4
  pass_at: [1, 2, 4]
  bootstrap_resamples: 100
slurm: {executor: local}
"""

Qianka = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def qianka() -> Qianka:
    """Runs the command `qianka` in a folder; its output and errors come back as one text."""

    def run(
        folder: Path, *arguments: str | Path, prefix: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [*prefix, sys.executable, "-P", "-m", "workflow.cli", *map(str, arguments)]
        # A session of its own, as on a terminal; rich keeps lines whole.
        return subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "COLUMNS": "400", "OMP_NUM_THREADS": "1", **(env or {})},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return run


@pytest.fixture(scope="session")
def tiny_config() -> str:
    """A config whose stages take seconds."""
    return TINY


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The tiny config as a file that is alone in its folder."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_a_terminal() -> None:
    """Commands that tests start hear SIGINT and SIGHUP, also where the tests were started by nohup or behind an `&`."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
