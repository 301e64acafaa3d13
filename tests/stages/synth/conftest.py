"""How the tests of synth run it: as the job does, in threads for ranks, or in a process that can be killed."""

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.job import Job, Stopped
from stages.synth.config import StageConfig
from stages.synth.run import run


@pytest.fixture
def config() -> Callable[..., StageConfig]:
    """`config(num_tasks=..)`: a small synth of arithmetic; `environment=` takes another environment."""

    def made(environment: dict[str, Any] | None = None, seed: int = 1, **synth: Any) -> StageConfig:
        defaults = {"num_tasks": 900, "workers": 1, "block_tasks": 100, "shard_rows": 250, "harder_tasks": 50}
        return StageConfig.model_validate(
            {"seed": seed, "environment": environment or {"name": "arithmetic"}, "synth": {**defaults, **synth}}
        )

    return made


@pytest.fixture
def synth(attempt: Callable[[str, dict[str, Any]], Path]) -> Callable[..., Path]:
    """`synth(config, ranks=1)` runs the stage in a new attempt folder, or in `folder`, and returns the folder."""

    def ran(config: StageConfig, ranks: int = 1, folder: Path | None = None, **job: Any) -> Path:
        where = folder or attempt("synth", config.model_dump(mode="json"))
        errors: list[Exception] = []

        def rank(number: int) -> None:
            try:
                run(config, {}, where, Job(rank=number, world_size=ranks, **job))
            except (ValueError, OSError, Stopped) as error:
                errors.append(error)

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(1, ranks)]
        for thread in threads:
            thread.start()
        rank(0)
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return where

    return ran


@pytest.fixture
def shards() -> Callable[[Path], dict[str, str]]:
    """`shards(folder)`: the digest of every shard by its path, equal for folders with the same bytes."""

    def digests(folder: Path) -> dict[str, str]:
        return {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for split in ("train", "validation", "evaluation", "harder")
            for path in sorted((folder / split).glob("*"))
        }

    return digests


@pytest.fixture
def rows_file(tmp_path: Path) -> Callable[..., str]:
    """`rows_file(rows)` writes a user's JSONL file and returns its path."""

    def written(rows: list[dict[str, Any]], name: str = "tasks.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return written
