"""A run of seconds, and one that nothing disturbed to compare with."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TINY = """\
seed: 3
environment: {name: arithmetic, operators: [2, 3], harder_operators: [4]}
model:
  architecture: {hidden_size: 32, num_layers: 1, num_heads: 2, num_key_value_heads: 1, intermediate_size: 64}
synth: {num_tasks: 1200, block_tasks: 100, shard_rows: 200, harder_tasks: 16, workers: 1}
sft:
  steps: 20
  batch_sequences: 8
  checkpoint: {every_steps: 3}
  validate_every_steps: 10
rl:
  steps: 6
  prompts_per_step: 4
  samples_per_prompt: 4
  sampling: {max_new_tokens: 24, slots: 16}
  checkpoint: {every_steps: 2}
evaluate:
  num_prompts: 8
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

    def run(folder: Path, *arguments: str | Path, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = [*prefix, sys.executable, "-P", "-m", "workflow.cli", *map(str, arguments)]
        # A session of its own, as on a terminal; rich keeps lines whole.
        return subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"COLUMNS": "400", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return run


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A config of seconds, alone in a folder."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, qianka: Qianka) -> Path:
    """The folder of a whole run of the tiny config."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "tiny.yaml").write_text(TINY)
    done = qianka(folder, "run", "tiny.yaml", "--cores", "1")
    assert done.returncode == 0, done.stdout
    return folder
