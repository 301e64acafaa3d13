"""A batch that was trained on is rebuilt from the log of batches and the trajectories of its step."""

import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from data.tokenizer import character_tokenizer
from data.trajectories import Trajectories, write_trajectories
from stages.rl.batch_log import REJECTED, BatchLog, Logged, digest
from stages.rl.prompts import request_seed
from stages.rl.replay import rebuild, show

SEED = 7


def group(position: int, attempt: int = 0, version: int = 3) -> Trajectories:
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
        seeds=np.array([request_seed(SEED, position, attempt, sample) for sample in range(samples)], np.int64),
        prompt_ids=(f"row{position}",) * samples,
    )


def step_file(folder: Path, step: int, rank: int, groups: dict[int, Trajectories]) -> Path:
    """What `rank` has learned from, by place."""
    path = folder / "trajectories" / f"step-{step:06d}-rank-{rank:04d}.h5"
    path.parent.mkdir(exist_ok=True)
    placed = [replace(one, groups=np.full_like(one.groups, place)) for place, one in groups.items()]
    write_trajectories(path, Trajectories.joined(placed), {"step": step, "rank": rank})
    return path


def logged(step: int, place: int, position: int, attempt: int, one: Trajectories) -> Logged:
    return Logged(
        step=step, place=place, position=position, attempt=attempt, prompt_id=one.prompt_ids[0], rank=place % 2,
        shard=position % 2, version=5, oldest=3, newest=3, samples=2, tokens=12, digest=digest(one).hex(),
    )  # fmt: skip


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """An attempt with two batches: positions 0 to 3, of which 1 was thrown away once, and 4 and 5."""
    step_file(tmp_path, 1, 0, {0: group(0), 2: group(2)})
    step_file(tmp_path, 1, 1, {1: group(1, attempt=1), 3: group(3)})
    step_file(tmp_path, 2, 0, {0: group(4)})
    step_file(tmp_path, 2, 1, {1: group(5)})
    log = BatchLog(tmp_path, True)
    log.add([logged(1, place, p, int(p == 1), group(p, int(p == 1))) for place, p in enumerate(range(4))])
    log.commit(1)
    log.add([logged(2, place, p, 0, group(p)) for place, p in enumerate((4, 5))])
    log.commit(2)
    return tmp_path


def shown(attempt: Path, step: int) -> tuple[int, str]:
    character_tokenizer("01:; ").save_pretrained(attempt / "model")
    console = Console(record=True, width=200, file=StringIO())
    code = show(console, rebuild(attempt, step, SEED), attempt / "model" / "tokenizer.json")
    return code, console.export_text()


def test_a_batch_is_rebuilt_bit_for_bit_in_its_order(attempt: Path) -> None:
    found = rebuild(attempt, 1, SEED)
    assert [one.row.position for one in found] == [0, 1, 2, 3]
    assert not any(one.wrong for one in found)
    for one in found:
        assert one.group is not None
        assert digest(one.group) == digest(group(one.row.position, one.row.attempt))


def test_it_shows_positions_versions_seeds_and_a_sample_as_text(attempt: Path) -> None:
    code, text = shown(attempt, 1)
    assert code == 0
    for part in (
        "row1",
        "version 5",
        "0 1",
        str(request_seed(SEED, 1, 1, 0)),
        "all 4 groups are those that were trained on, bit for bit",
    ):
        assert part in text
    assert "prompt: 01:" in text and "answer: 10" in text


def test_what_is_gone_or_changed_is_named_and_the_exit_code_is_1(attempt: Path) -> None:
    step_file(attempt, 1, 0, {2: replace(group(2), rewards=np.ones(2, np.float32))})
    code, text = shown(attempt, 1)
    assert code == 1
    assert "place 0, position 0: no file trajectories/step-000001-rank-0000.h5 has it" in text
    assert "place 2, position 2: its samples are not those that were trained on" in text
    assert "2 of 4 groups cannot be rebuilt" in text


def test_seeds_that_are_not_those_of_the_position_are_named(attempt: Path) -> None:
    found = rebuild(attempt, 2, SEED + 1)
    assert [one.wrong for one in found] == [f"its seeds are not those of position {p}, attempt 0" for p in (4, 5)]


def test_a_step_that_was_not_trained_and_a_run_without_a_log_are_mistakes(attempt: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no step 9; the log has steps 1 to 2"):
        rebuild(attempt, 9, SEED)
    with pytest.raises(ValueError, match="only asynchronous mode writes it"):
        rebuild(tmp_path / "elsewhere", 1, SEED)


def test_groups_from_which_there_was_nothing_to_learn_are_shown_with_who_played_them(attempt: Path) -> None:
    log = BatchLog(attempt, True)
    rejected = logged(3, REJECTED, 9, 1, group(9))._replace(member="actor-7", lease="c-12")
    log.add([rejected, logged(3, 0, 8, 0, group(8))])
    log.commit(3)
    step_file(attempt, 3, 0, {0: group(8)})
    code, text = shown(attempt, 3)
    assert code == 0 and "all 1 groups are those that were trained on" in text
    assert "from 1 more there was nothing to learn" in text
    assert "rejected" in text and "actor-7" in text and "c-12" in text


def test_it_needs_no_torch(tmp_path: Path) -> None:
    program = "import sys, stages.rl.replay; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
