"""A world in which the rl stage learns within seconds: rows with one-digit answers, and a random model."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from checkpoints.commit import commit
from checkpoints.manifest import NAME, Provenance, Result, commit_manifest
from data.job import Job
from data.rows import SCHEMA, row_id
from data.shards import write_shard
from data.tokenizer import character_tokenizer
from stages.rl.config import StageConfig
from stages.rl.run import run
from stages.trainer.config import ArchitectureConfig, ModelConfig
from stages.trainer.policy import load_policy

ALPHABET = "01:; "
NUM_ROWS = 24


@dataclass(frozen=True)
class World:
    """What the stage is given."""

    config: StageConfig
    synth: Path
    sft: Path
    attempts: Iterator[Path]

    @property
    def inputs(self) -> dict[str, Result]:
        return {"synth": Result(self.synth / NAME), "sft": Result(self.sft / NAME)}

    def changed(self, **rl: Any) -> StageConfig:
        return StageConfig.model_validate(self.config.model_dump() | {"rl": self.config.rl.model_dump() | rl})

    def attempt(self) -> Path:
        """A new attempt folder."""
        return next(self.attempts)


def attempts(folder: Path, stage: str) -> Iterator[Path]:
    for number in count():
        path = folder / f"{stage}-{number}"
        path.mkdir()
        Provenance(
            stage=stage, attempt=path.name, config={}, config_digest="", code_digest="of a test", code_version=""
        ).write(path)
        yield path


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("rl")
    rows = [(f"{number:05b}:"[-6:], str(number % 2)) for number in range(NUM_ROWS)]
    table = pa.Table.from_pylist(
        [
            {"id": row_id(p), "prompt": p, "answer": a, "trace": "", "level": 1, "seed": -1, "source": "test"}
            for p, a in rows
        ],
        SCHEMA,
    )
    synth, sft = next(attempts(folder, "synth")), next(attempts(folder, "sft"))
    shard = synth / "train" / "0000.parquet"
    with commit(shard) as aside:
        write_shard(aside, table, {})
    commit_manifest(synth, [shard], {})

    architecture = ArchitectureConfig(
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        max_positions=32,
        alphabet=ALPHABET,
    )
    policy = load_policy(ModelConfig(architecture=architecture), 3)
    policy.model.save_pretrained(sft / "model")
    character_tokenizer(ALPHABET).save_pretrained(sft / "model")
    commit_manifest(sft, [path for path in (sft / "model").iterdir()], {})

    (folder / "rows.jsonl").write_text("".join(f'{{"prompt": "{p}", "answer": "{a}"}}\n' for p, a in rows))
    config = StageConfig.model_validate(
        {
            "seed": 5,
            "environment": {"name": "rows", "path": str(folder / "rows.jsonl"), "grader": "contains"},
            "rl": {
                "steps": 4,
                "prompts_per_step": 4,
                "samples_per_prompt": 4,
                "sampling": {"max_new_tokens": 8, "slots": 8},
                "micro_batch_tokens": 40,
                "learning_rate": 0.01,
                "checkpoint": {"every_steps": 2},
            },
        }
    )
    return World(config, synth, sft, attempts(folder, "rl"))


@pytest.fixture(scope="session")
def undisturbed(world: World) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = world.attempt()
    run(world.config, world.inputs, folder, Job())
    return folder


@pytest.fixture(scope="session")
def dapo(world: World) -> Path:
    """The folder of a run with dynamic sampling that nothing disturbed."""
    folder = world.attempt()
    run(world.changed(algorithm="dapo"), world.inputs, folder, Job())
    return folder


PROGRAM = """
import os, sys
from pathlib import Path
from checkpoints.manifest import NAME, Result
from data.job import Job
from stages.rl.config import StageConfig
from stages.rl.run import run

config, synth, sft, folder, rank, world_size = sys.argv[1:]
job = Job(rank=int(rank), world_size=int(world_size), rendezvous=Path(folder) / "rendezvous.json")
inputs = {"synth": Result(Path(synth) / NAME), "sft": Result(Path(sft) / NAME)}
run(StageConfig.model_validate_json(config), inputs, Path(folder), job)
"""


@pytest.fixture
def start(world: World) -> Callable[..., list[subprocess.Popen[bytes]]]:
    """`start(config, folder, world_size)` starts the stage's ranks as processes of their own; `before` is run first."""

    def started(
        config: StageConfig, folder: Path, world_size: int = 1, of: World = world, before: str = ""
    ) -> list[subprocess.Popen[bytes]]:
        arguments = [
            sys.executable,
            "-c",
            before + PROGRAM,
            config.model_dump_json(),
            str(of.synth),
            str(of.sft),
            str(folder),
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return [
            subprocess.Popen([*arguments, str(rank), str(world_size)], env=environment) for rank in range(world_size)
        ]

    return started
