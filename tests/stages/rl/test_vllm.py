"""The rl stage with vLLM as its engine, from end to end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checkpoints.manifest import NAME, Provenance, Result, commit_manifest
from data.metrics import read_metrics
from data.tokenizer import load_tokenizer
from data.trajectories import read_trajectories
from stages.rl.batch_log import read_batches
from stages.rl.config import StageConfig
from stages.trainer.config import ArchitectureConfig, ModelConfig
from stages.trainer.policy import load_policy

PROGRAM = """
import sys
from pathlib import Path
from checkpoints.manifest import NAME, Result
from data.job import Job
from stages.rl.config import StageConfig
from stages.rl.run import run

config, synth, sft, folder, rank, world_size = sys.argv[1:]
rank, meet = int(rank), Path(folder) / "rendezvous.json"
job = Job(rank=rank, world_size=int(world_size), local_rank=rank, rendezvous=meet)
inputs = {"synth": Result(Path(synth)), "sft": Result(Path(sft))}
run(StageConfig.model_validate_json(config), inputs, Path(folder), job)
"""


@pytest.fixture(scope="module")
def sft(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of an sft stage whose model has heads of 32, which vLLM's CPU build wants at least."""
    folder = tmp_path_factory.mktemp("sft")
    Provenance(
        stage="sft", attempt=folder.name, config={}, config_digest="", code_digest="of a test", code_version=""
    ).write(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_heads": 1, "num_key_value_heads": 1}
    tokenizer = load_tokenizer(world.sft / "model")
    architecture = ArchitectureConfig(num_layers=2, max_positions=32, alphabet="01:; ", **sizes)
    load_policy(ModelConfig(architecture=architecture), 3).model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    commit_manifest(folder, list((folder / "model").iterdir()), {})
    return folder / NAME


ACTOR = PROGRAM.replace("stages.rl.run import", "stages.rl.actor.run import")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_learners_learn_from_an_actor_whose_engine_is_vllm_and_takes_new_weights_while_it_generates(
    world: Any, sft: Path
) -> None:
    folder = world.attempt()
    given = world.changed(mode="asynchronous", steps=6).model_dump(mode="json") | {"engine": {"name": "vllm"}}
    config = StageConfig.model_validate(given)
    arguments = [config.model_dump_json(), str(world.synth / NAME), str(sft), str(folder), "0", "1"]
    settings = os.environ | {"OMP_NUM_THREADS": "1"}
    actor = subprocess.Popen([sys.executable, "-c", ACTOR, *arguments], env=settings)
    learner = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], env=settings)
    try:
        assert learner.wait(600) == 0 and actor.wait(60) == 0
    finally:
        for process in (actor, learner):
            process.kill()
    rows, metrics = read_batches(folder).to_pylist(), read_metrics(folder)
    assert len({row["position"] for row in rows}) == len(rows) == 6 * 4
    assert max(row["newest"] for row in rows) >= 2 and all(row["version"] - row["oldest"] <= 2 for row in rows)
    assert metrics["parity"][0].as_py() < 1e-4


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "world_size"), [("vllm", 2), ("vllm_server", 2)])
def test_two_ranks_learn_from_what_vllm_plays(world: Any, sft: Path, name: str, world_size: int) -> None:
    folder = world.attempt()
    given = world.changed(steps=2).model_dump(mode="json") | {"engine": {"name": name}}
    config = StageConfig.model_validate(given)
    arguments = [config.model_dump_json(), str(world.synth / NAME), str(sft), str(folder)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments, str(rank), str(world_size)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(world_size)
    ]
    assert [rank.wait() for rank in ranks] == [0] * world_size
    result = Result(folder / NAME)
    assert result.manifest.metrics["steps"] == 2
    assert max(read_metrics(folder)["parity"].to_pylist()) < 1e-4
    versions = [
        {int(version) for version in played.versions[played.mask]}
        for played, *_ in map(read_trajectories, sorted(result.paths("trajectories/")))
    ]
    assert versions[0] != versions[-1] and all(len(made) == 1 for made in versions)
    if name == "vllm_server":
        (endpoint,) = (folder / "engine").glob("*.json")
        assert endpoint.stat().st_mode & 0o777 == 0o600
        assert json.loads(endpoint.read_text())["host"] == "127.0.0.1"
