"""Colocated mode: what a phase has no use for is away, and the result is that of synchronous mode."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from data.job import Job
from stages.rl import synchronous
from stages.rl.phases import Phases
from stages.rl.run import run
from stages.rollout.torch.engine import TorchEngine
from stages.trainer.config import OptimizerConfig
from stages.trainer.device import distributed
from stages.trainer.learner import Learner
from stages.trainer.offload import away, optimizer_state, parameters
from stages.trainer.policy import load_policy

Start = Callable[..., list[subprocess.Popen[bytes]]]


def contents(folder: Path) -> dict[str, bytes]:
    paths = [folder / "model" / "model.safetensors", *sorted((folder / "trajectories").iterdir())]
    return {path.name: path.read_bytes() for path in paths}


def num_bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@pytest.fixture
def no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    assert list(folder.iterdir()) == []


def test_the_result_is_that_of_synchronous_mode_bit_for_bit(
    world: Any, undisturbed: Path, no_file_is_left: Path
) -> None:
    folder = world.attempt()
    run(world.changed(mode="colocated"), world.inputs, folder, Job())
    assert contents(folder) == contents(undisturbed)


def test_it_is_with_a_reference_a_critic_and_several_rounds(world: Any) -> None:
    for algorithm in ("ppo", "grpo", "dapo"):
        folders = [world.attempt() for _ in range(2)]
        for folder, mode in zip(folders, ("synchronous", "colocated"), strict=True):
            run(world.changed(mode=mode, algorithm=algorithm), world.inputs, folder, Job())
        assert contents(folders[0]) == contents(folders[1]), algorithm


def test_the_optimizer_is_away_while_the_engine_plays_and_back_for_the_update(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[int]] = {"playing": [], "update": []}
    learners: list[Learner] = []
    real_init, real_play, real_update = Phases.__init__, synchronous.Player.play, synchronous.update

    def init(self: Phases, colocated: bool, learner: Learner, *others: Any) -> None:
        learners.append(learner)
        real_init(self, colocated, learner, *others)

    def play(*arguments: Any) -> Any:
        seen["playing"].append(num_bytes(optimizer_state(learners[0])))
        return real_play(*arguments)

    def update(*arguments: Any) -> Any:
        seen["update"].append(num_bytes(optimizer_state(learners[0])))
        return real_update(*arguments)

    monkeypatch.setattr(Phases, "__init__", init)
    monkeypatch.setattr(synchronous.Player, "play", play)
    monkeypatch.setattr(synchronous, "update", update)
    run(world.changed(mode="colocated"), world.inputs, world.attempt(), Job())
    weights = sum(parameter.numel() for parameter in learners[0].policy.parameters())
    assert seen["playing"] == [0] * 4
    assert all(found >= 2 * 4 * weights for found in seen["update"])


@pytest.mark.slow
def test_with_weights_in_shards_the_policy_is_away_as_well_and_two_ranks_learn_the_same_bits(
    world: Any, start: Start
) -> None:
    """The engine's copy is gone in the update, the shards while it plays; each rank sees so."""
    looking = """
from stages.rl import synchronous
play, update = synchronous.Player.play, synchronous.update
def weights(model):
    return sum(getattr(p, "_local_tensor", p).untyped_storage().nbytes() for p in model.parameters())
def playing(self, *arguments):
    assert weights(self.engine.model) > 0 and weights(POLICY[0]) == 0
    return play(self, *arguments)
def updating(learner, *arguments):
    assert weights(ENGINES[0].model) == 0 and weights(learner.policy) > 0
    return update(learner, *arguments)
POLICY, ENGINES = [], []
make = synchronous.make_engine
def making(config, learner, *others):
    POLICY.append(learner.policy), ENGINES.append(make(config, learner, *others))
    return ENGINES[0]
synchronous.Player.play, synchronous.update, synchronous.make_engine = playing, updating, making
"""
    one, other = world.attempt(), world.attempt()
    assert [process.wait() for process in start(world.config, one, 2)] == [0, 0]
    processes = start(world.changed(mode="colocated"), other, 2, before=looking)
    assert [process.wait() for process in processes] == [0, 0]
    assert contents(one) == contents(other)


@pytest.mark.slow
def test_killed_while_the_optimizer_is_away_it_ends_with_the_same_bits_and_leaves_no_file(
    world: Any, undisturbed: Path, start: Start, no_file_is_left: Path
) -> None:
    folder, config = world.attempt(), world.changed(mode="colocated")
    mark = folder / "away"
    stopping = f"""
import pathlib, time
from stages.rl import synchronous
play = synchronous.Player.play
def playing(self, step, tasks):
    if step == 3:
        pathlib.Path({str(mark)!r}).touch()
        time.sleep(600)
    return play(self, step, tasks)
synchronous.Player.play = playing
"""
    (process,) = start(config, folder, before=stopping)
    while not mark.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    mark.unlink()
    run(config, world.inputs, folder, Job())
    assert contents(folder) == contents(undisturbed)


def test_what_comes_back_is_what_left_also_weights_that_lie_in_a_models_file(world: Any) -> None:
    with distributed(Job()):
        policy = load_policy(world.sft / "model", 0)
        learner = Learner(policy, OptimizerConfig(), 0.01, 4, Job())
        tensors = [*parameters(policy), *optimizer_state(learner)]
        before = [tensor.detach().clone() for tensor in tensors]
        with away(tensors):
            assert num_bytes(tensors) == 0
        assert all(torch.equal(one, other) for one, other in zip(before, tensors, strict=True))
        assert num_bytes(tensors) >= 3 * 4 * sum(parameter.numel() for parameter in policy.parameters())


def test_a_sleeping_copy_has_no_memory_and_takes_weights_when_it_wakes(world: Any) -> None:
    model = load_policy(world.sft / "model", 0).model
    weights = [(name, weight.detach().clone()) for name, weight in model.named_parameters()]
    engine = TorchEngine(model, 2, sleeps_without_weights=True)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    engine.sleep()
    assert num_bytes(list(model.parameters())) == 0
    engine.wake()
    engine.update(weights, 1)
    assert all(torch.equal(weight, model.get_parameter(name)) for name, weight in weights)


MEMORY = """
import sys
import torch
from torch import nn
from stages.trainer.offload import away
state = [torch.ones(1 << 24) for _ in range(4)]  # 256 MB
with away(state) if sys.argv[1] == "away" else open("/dev/null"):
    torch.ones(1 << 26)  # as much again
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_the_peak_of_memory_falls_by_what_is_away() -> None:
    def peak(mode: str) -> int:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        run = subprocess.run([sys.executable, "-c", MEMORY, mode], capture_output=True, check=True, env=environment)
        return int(run.stdout)

    assert peak("here") - peak("away") > 200 << 10
