import json
import multiprocessing
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from checkpoints.commit import remove_torn
from checkpoints.sharded import latest, load, save


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((64, 32), value), "moment": torch.full((64, 32), value + 0.5), "step": torch.ones(())}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_tensors_step_and_state_come_back(tmp_path: Path) -> None:
    save(tmp_path, 12, tensors(3.0), {"cursor": 384, "note": "é"}, keep=2)
    path = latest(tmp_path)
    assert path == tmp_path / "step-000012"
    found = tensors(0.0)
    assert load(path, found) == (12, {"cursor": 384, "note": "é"})
    assert all(torch.equal(found[name], wanted) for name, wanted in tensors(3.0).items())


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert latest(tmp_path / "checkpoints") is None


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        save(tmp_path, step, tensors(step), {}, keep=2)
    assert names(tmp_path) == ["step-000003", "step-000010"]


def test_steps_are_numbers_beyond_six_digits_too(tmp_path: Path) -> None:
    for step in (999_998, 999_999, 1_000_000):
        save(tmp_path, step, tensors(step), {}, keep=2)
    assert names(tmp_path) == ["step-1000000", "step-999999"]
    assert latest(tmp_path) == tmp_path / "step-1000000"


def test_a_step_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    save(tmp_path, 5, tensors(1.0), {"first": True}, keep=2)
    save(tmp_path, 5, tensors(2.0), {"first": False}, keep=2)
    assert load(tmp_path / "step-000005", tensors(0.0))[1] == {"first": True}


def test_a_torn_save_is_no_checkpoint_and_is_removed(tmp_path: Path) -> None:
    save(tmp_path, 5, tensors(1.0), {}, keep=2)
    torn = tmp_path / "step-000006.writing"
    torn.mkdir()
    (torn / "__0_0.distcp").write_bytes(b"half")
    assert latest(tmp_path) == tmp_path / "step-000005"
    assert remove_torn(tmp_path) == [torn]
    save(tmp_path, 6, tensors(2.0), {}, keep=2)
    assert latest(tmp_path) == tmp_path / "step-000006"


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "state.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path, 5, tensors(1.0), {}, keep=2)
    (tmp_path / "step-000005" / name).unlink()
    with pytest.raises(ValueError, match=f"step-000005/{name}: missing"):
        load(tmp_path / "step-000005", tensors(0.0))


def test_a_shortened_file_is_named(tmp_path: Path) -> None:
    save(tmp_path, 5, tensors(1.0), {}, keep=2)
    path = tmp_path / "step-000005" / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"__0_0\.distcp: missing or not of"):
        load(tmp_path / "step-000005", tensors(0.0))


def test_a_tensor_that_one_side_lacks_is_named(tmp_path: Path) -> None:
    save(tmp_path, 5, tensors(1.0), {}, keep=2)
    more = tensors(0.0) | {"value_head": torch.zeros(3)}
    with pytest.raises(ValueError, match="value_head is not in the checkpoint"):
        load(tmp_path / "step-000005", more)
    less = tensors(0.0)
    del less["moment"]
    with pytest.raises(ValueError, match="moment of the checkpoint has no place"):
        load(tmp_path / "step-000005", less)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    save(tmp_path, 5, tensors(1.0), {}, keep=2)
    other = tensors(0.0) | {"weight": torch.zeros(64, 16)}
    with pytest.raises(ValueError, match=r"weight has shape \(64, 32\), this run needs \(64, 16\)"):
        load(tmp_path / "step-000005", other)


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 5, tensors(1.0), {}, keep=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="step-000006"):
            save(tmp_path, 6, tensors(2.0), {}, keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert latest(tmp_path) == tmp_path / "step-000005"


def save_for_ever(folder: Path) -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    path = latest(folder)
    step = 0 if path is None else load(path, tensors(0.0))[0]
    while True:
        step += 1
        save(folder, step, tensors(step), {"step": step}, keep=2)


def last_step(folder: Path) -> int:
    """Of the checkpoints that are there; those before it may be gone again."""
    return max((int(path.name[5:]) for path in folder.glob("step-??????")), default=0)


def test_kill_9_at_any_moment_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["checkpoints.sharded"])
    numbers = random.Random(1)
    before, kills = 0, 0
    for _ in range(10):
        process = context.Process(target=save_for_ever, args=(tmp_path,))
        process.start()
        deadline = time.monotonic() + 60
        while last_step(tmp_path) <= before and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(numbers.uniform(0, 0.05))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        path = latest(tmp_path)
        assert path is not None
        found = tensors(0.0)
        step, state = load(path, found)
        assert step > before
        assert state == {"step": step}
        assert all(torch.equal(found[name], wanted) for name, wanted in tensors(step).items())
        remove_torn(tmp_path)
        kept, kills = names(tmp_path), kills + 1
        assert kept == [f"step-{number:06d}" for number in range(step + 1 - len(kept), step + 1)]
        assert min(2, step) <= len(kept) <= 2 + kills, "one more for each kill that came before the oldest was removed"
        before = step


def test_the_state_is_json_that_a_person_can_read(tmp_path: Path) -> None:
    save(tmp_path, 5, tensors(1.0), {"cursor": 7}, keep=2)
    record = json.loads((tmp_path / "step-000005" / "state.json").read_text())
    assert (record["step"], record["state"]) == (5, {"cursor": 7})
    assert sorted(record["files"]) == [".metadata", "__0_0.distcp"]
