"""A batch that was trained on is rebuilt from the log of batches and the shards' journals."""

import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from data.segments import origin, write_segment
from data.tokenizer import character_tokenizer
from data.trajectories import Trajectories
from stages.rl.batches import BatchLog, Logged, digest
from stages.rl.replay import rebuild, show


def group(position: int, version: int = 3) -> Trajectories:
    samples, tokens = 2, 6
    mask = np.tile(np.arange(tokens) >= 3, samples)
    return Trajectories(
        tokens=np.tile(np.array([3, 4, 5, 4, position % 3 + 3, 2], np.int32), samples),
        mask=mask,
        logprobs=np.where(mask, -0.5 - position, 0).astype(np.float32),
        versions=np.where(mask, version, -1).astype(np.int32),
        offsets=np.array([0, tokens, 2 * tokens], np.int64),
        prompt_lengths=np.full(samples, 3, np.int32),
        rewards=np.array([0, 1], np.float32),
        terms=np.array([[0], [1]], np.float32),
        finished=np.ones(samples, np.bool_),
        limits=np.full(samples, 3, np.int32),
        graded=np.ones(samples, np.bool_),
        groups=np.zeros(samples, np.int32),
        seeds=np.arange(samples, dtype=np.int64) + 10 * position,
        prompt_ids=(f"row{position}",) * samples,
    )


def segment(
    folder: Path, shard: int, name: str, groups: dict[tuple[int, int], Trajectories], whole: bool = True
) -> Path:
    span = f"{min(p for p, _ in groups):010d}-{max(p for p, _ in groups):010d}"
    path = folder / "trajectories" / f"groups-{span}-of-0002-{shard:04d}-{name}-000000.h5"
    path.parent.mkdir(exist_ok=True)
    origins = [origin(p, a, whole, 1.0, f"actor-{p}", one) for (p, a), one in groups.items()]
    write_segment(path, origins, list(groups.values()), {"shard": shard, "shards": 2})
    return path


def logged(step: int, place: int, position: int, attempt: int, one: Trajectories) -> Logged:
    return Logged(
        step=step, place=place, position=position, attempt=attempt, prompt_id=one.prompt_ids[0], rank=0,
        shard=position % 2, version=5, oldest=3, newest=3, samples=2, tokens=12, digest=digest(one).hex(),
    )  # fmt: skip


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """An attempt with two batches: positions 0 to 3, of which 1 was thrown away once, and 4 and 5."""
    segment(tmp_path, 0, "s", {(0, 0): group(0), (2, 0): group(2)})
    segment(tmp_path, 0, "half", {(2, 0): group(2, version=1)}, whole=False)
    segment(tmp_path, 1, "s", {(1, 1): group(1), (3, 0): group(3)})
    segment(tmp_path, 1, "late", {(3, 0): group(3, version=2)})
    segment(tmp_path, 0, "t", {(4, 0): group(4)})
    segment(tmp_path, 1, "t", {(5, 0): group(5)})
    log = BatchLog(tmp_path, True)
    log.add([logged(1, place, p, int(p == 1), group(p)) for place, p in enumerate(range(4))])
    log.commit(1)
    log.add([logged(2, place, p, 0, group(p)) for place, p in enumerate((4, 5))])
    log.commit(2)
    return tmp_path


def shown(attempt: Path, step: int) -> tuple[int, str]:
    character_tokenizer("01:; ").save_pretrained(attempt / "model")
    console = Console(record=True, width=200, file=StringIO())
    code = show(console, rebuild(attempt, step), attempt / "model" / "tokenizer.json")
    return code, console.export_text()


def test_a_batch_is_rebuilt_bit_for_bit_in_its_order(attempt: Path) -> None:
    found = rebuild(attempt, 1)
    assert [one.row.position for one in found] == [0, 1, 2, 3]
    assert not any(one.wrong for one in found)
    for one in found:
        assert one.group is not None and digest(one.group) == digest(group(one.row.position))
    assert [one.member for one in found] == [f"actor-{position}" for position in range(4)]


def test_it_shows_who_played_what_and_a_sample_as_text(attempt: Path) -> None:
    code, text = shown(attempt, 1)
    assert code == 0
    for part in ("actor-3", "row1", "version 5", "0 1", "all 4 groups are those that were trained on, bit for bit"):
        assert part in text
    assert "prompt: 01:" in text and "answer: 10" in text


def test_what_is_gone_or_changed_is_named_and_the_exit_code_is_1(attempt: Path) -> None:
    (path,) = attempt.glob("trajectories/*-of-0002-0000-s-*.h5")
    path.unlink()
    (path,) = attempt.glob("trajectories/*-of-0002-0001-s-*.h5")
    path.unlink()
    segment(attempt, 1, "s", {(1, 1): replace(group(1), rewards=np.ones(2, np.float32)), (3, 0): group(3)})
    code, text = shown(attempt, 1)
    assert code == 1
    assert "place 0, position 0: no journal has attempt 0" in text
    assert "place 1, position 1: what groups-" in text and "is not what was trained on" in text
    assert "3 of 4 groups cannot be rebuilt" in text


def test_a_step_that_was_not_trained_and_a_run_without_a_log_are_mistakes(attempt: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no step 9; the log has steps 1 to 2"):
        rebuild(attempt, 9)
    with pytest.raises(ValueError, match="only asynchronous mode writes it"):
        rebuild(tmp_path / "elsewhere", 1)


def test_it_needs_no_torch(tmp_path: Path) -> None:
    program = "import sys, stages.rl.replay; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
