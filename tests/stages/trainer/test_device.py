import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from data.job import Job
from stages.trainer.device import _pause, any_rank, device_of, distributed, largest, total, use_cores


def agree(job: Job) -> tuple[bool, bool, int, list[float]]:
    with distributed(job):
        return any_rank(job.rank == 1), any_rank(False), largest(job.rank * 10), total(job.rank, 0.5)


def test_all_ranks_come_to_the_same_answer(ranks: Any) -> None:
    assert ranks(agree, 3) == [(True, False, 20, [3.0, 1.5])] * 3


def test_one_rank_needs_no_rendezvous() -> None:
    with distributed(Job(cpus=1)) as device:
        assert device == device_of(Job())
        assert any_rank(True)
        assert torch.are_deterministic_algorithms_enabled()


def test_ranks_look_for_each_other_often_at_first_and_then_seldom() -> None:
    assert 0 < _pause(0) <= 0.05
    assert all(_pause(waited) <= waited / 10 for waited in (1, 5, 20))
    assert 1 <= _pause(600) <= 2


def test_small_models_compute_on_one_core_and_others_on_all_of_the_rank() -> None:
    before = torch.get_num_threads()
    use_cores(Job(cpus=2), torch.nn.Linear(1000, 1001))
    assert torch.get_num_threads() == 2
    use_cores(Job(cpus=2), torch.nn.Linear(100, 100))
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def test_the_announcement_is_for_the_user_alone(ranks: Any, tmp_path: Path) -> None:
    ranks(agree, 2)
    path = tmp_path / "rendezvous-0"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["port"] not in (0, 29500)


def test_two_jobs_at_once_do_not_meet(ranks: Any, tmp_path: Path) -> None:
    answers: list[Any] = []
    jobs = [threading.Thread(target=lambda: answers.append(ranks(agree, 2))) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert answers == [[(True, False, 10, [1.0, 1.0])] * 2] * 2
    ports = {json.loads(path.read_text())["port"] for path in tmp_path.glob("rendezvous-*")}
    assert len(ports) == 2


def agree_late(job: Job) -> tuple[bool, bool, int, list[float]]:
    """Rank 0 comes last, so the others see what an earlier start left behind."""
    if job.is_first:
        threading.Event().wait(0.5)
    return agree(job)


@pytest.mark.parametrize("left", [{"host": "localhost", "port": 1, "token": "old"}, None])
def test_the_announcement_of_an_earlier_start_misleads_no_one(ranks: Any, tmp_path: Path, left: Any) -> None:
    path = tmp_path / "rendezvous-0"
    if left is None:  # the earlier port now belongs to another job
        other = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        other.set("token", "of another job")
        left = {"host": "localhost", "port": other.port, "token": "old"}
    path.write_text(json.dumps(left))
    assert ranks(agree_late, 2) == [(True, False, 10, [1.0, 1.0])] * 2


def test_ranks_that_do_not_come_are_named(tmp_path: Path) -> None:
    job = Job(world_size=4, rendezvous=tmp_path / "rendezvous", start_seconds=3, node="localhost")
    with pytest.raises(TimeoutError, match=r"ranks \[1, 2, 3\] have not reached rank 0"), distributed(job):
        pass


@pytest.mark.parametrize("interface", ["nosuch0", "lo,nosuch0"])
def test_an_unknown_interface_is_named(tmp_path: Path, interface: str) -> None:
    job = Job(world_size=2, rendezvous=tmp_path / "rendezvous", interface=interface)
    with pytest.raises(ValueError, match=r"slurm\.interface: .*'nosuch0'"), distributed(job):
        pass


def outlive(job: Job) -> float:
    """Rank 1 dies in the middle of the run; the seconds after which rank 0 knows."""
    with distributed(job):
        any_rank(False)
        if job.rank == 1:
            os._exit(9)
        started = time.monotonic()
        with pytest.raises(RuntimeError):
            any_rank(False)
        return time.monotonic() - started


def test_a_dead_rank_is_noticed_within_seconds(ranks: Any) -> None:
    assert ranks(outlive, 2, dies=1)[0] < 10
