"""The evaluate stage with vLLM as its engine: the numbers of the torch engine."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints.manifest import NAME, Result
from stages.evaluate.config import StageConfig

PROGRAM = """
import sys
from pathlib import Path
from checkpoints.manifest import Result
from data.job import Job
from stages.evaluate.config import StageConfig
from stages.evaluate.run import run

config, folder, *inputs = sys.argv[1:]
results = dict(zip(("synth", "sft", "rl"), (Result(Path(path)) for path in inputs)))
run(StageConfig.model_validate_json(config), results, Path(folder), Job())
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_greedy_and_noisy_answers_are_those_of_the_torch_engine(
    config: StageConfig, inputs: dict[str, Result], evaluated: Path, evaluate_attempt: Callable[[], Path]
) -> None:
    folder = evaluate_attempt()
    given = StageConfig.model_validate(config.model_dump(mode="json") | {"engine": {"name": "vllm"}})
    manifests = [str(inputs[stage].folder / NAME) for stage in ("synth", "sft", "rl")]
    subprocess.run([sys.executable, "-c", PROGRAM, given.model_dump_json(), str(folder), *manifests], check=True)
    ours, theirs = (json.loads((path / "report.json").read_text())["policies"] for path in (folder, evaluated))
    for policy in ("sft", "rl"):
        for suite in ("greedy", "robustness"):
            assert ours[policy][suite]["success"] == theirs[policy][suite]["success"]
