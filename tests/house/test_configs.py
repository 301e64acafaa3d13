import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stages.algorithms.load import load_algorithm
from workflow.config import CONFIGS, load

ROOT = Path(__file__).parents[2]
RUNS = sorted(CONFIGS.glob("*.yaml"))
ALGORITHMS = sorted((ROOT / "stages" / "algorithms").glob("*.yaml"))


def stem(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", RUNS, ids=stem)
def test_a_shipped_config_parses(path):
    assert load([str(path)]).name == path.stem


@pytest.mark.parametrize("path", ALGORITHMS, ids=stem)
def test_a_shipped_algorithm_parses(path):
    assert load_algorithm(path.stem).name == path.stem


def test_every_yaml_file_is_a_config_or_an_algorithm_or_of_a_profile(tracked):
    profiles = {*(ROOT / "profiles").glob("*/config.yaml"), *(ROOT / "workflow" / "profiles").glob("*/*.yaml")}
    assert {ROOT / name for name in tracked if name.endswith(".yaml")} == {*RUNS, *ALGORITHMS, *profiles}
    for path in profiles:
        assert yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", RUNS, ids=stem)
def test_snakemake_would_run_the_four_stages_of_a_shipped_config(path, tmp_path):
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--cores", "2", "--snakefile", ROOT / "Snakefile"]
    done = subprocess.run(
        [*command, "--directory", tmp_path, "--configfile", path], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for stage in ("synth", "sft", "rl", "evaluate"):
        assert f"runs/{path.stem}/{stage}/manifest.json" in done.stdout + done.stderr
