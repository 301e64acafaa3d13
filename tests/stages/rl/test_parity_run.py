"""The parity gate in the stage: at the start, after a resume, and on two ranks."""

import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch

from data.job import Job, Stopped
from data.metrics import read_metrics
from data.packing import Packed
from data.tokenizer import decode, encode_completion, load_tokenizer
from stages.rl import synchronous as rl_run
from stages.rl.rollouts import Player
from stages.rl.run import run
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion
from stages.rollout.parity import ParityError
from stages.rollout.torch.engine import TorchEngine
from stages.trainer.learner import Learner
from stages.trainer.policy import Policy


def stopped_after_one_step(world: Any) -> Path:
    folder, job = world.attempt(), Job()
    job.stop.set()
    with pytest.raises(Stopped):
        run(world.config, world.inputs, folder, job)
    return folder


def test_every_step_says_how_far_engine_and_policy_part(undisturbed: Path) -> None:
    table = read_metrics(undisturbed)
    for largest, mean in zip(table["parity"].to_pylist(), table["parity_mean"].to_pylist(), strict=True):
        assert 0 < mean < largest < 1e-5


def test_weights_that_came_back_wrong_from_a_checkpoint_do_not_train_on_the_rollouts_of_before(
    world: Any, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field report R7: after a resume the log-probabilities no longer matched."""
    folder = stopped_after_one_step(world)
    kept = folder / "trajectories" / "step-000002-rank-0000.h5"
    kept.write_bytes((undisturbed / "trajectories" / kept.name).read_bytes())
    real = Learner.resume

    def resume(self: Learner, path: Path) -> Any:
        found = real(self, path)
        with torch.no_grad():
            self.policy.model.get_parameter("model.layers.1.mlp.up_proj.weight").add_(0.5)
        return found

    monkeypatch.setattr(Learner, "resume", resume)
    for _ in "ab":
        with pytest.raises(ParityError, match="on rollouts of step 2, which were read back after a resume") as found:
            run(world.config, world.inputs, folder, Job())
        assert "They part in: tokens. Both agree now: other weights made these tokens" in str(found.value)
        assert kept.exists()


def test_rollouts_that_were_refused_are_not_read_back(
    world: Any, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = world.attempt(), TorchEngine.start

    def start(self: TorchEngine, sampling: SamplingConfig, **options: Any) -> None:
        real(self, sampling.model_copy(update={"temperature": 0.6}), **options)

    with monkeypatch.context() as patch:
        patch.setattr(TorchEngine, "start", start)
        with pytest.raises(ParityError, match="They part in: temperature"):
            run(world.config, world.inputs, folder, Job())
    (refused,) = (folder / "trajectories").iterdir()
    assert refused.name == "step-000001-rank-0000.h5.refused"
    run(world.config, world.inputs, folder, Job())
    for path in (undisturbed / "trajectories").iterdir():
        assert (folder / "trajectories" / path.name).read_bytes() == path.read_bytes()


class Crash(BaseException):
    """Like a kill, but it leaves the process of the test alive."""


@pytest.mark.parametrize(
    ("healthy", "moment"),
    [
        (False, "stages.rl.parity.Gate.compare"),
        (False, "stages.rl.step_files.StepFiles.write"),
        (False, "stages.rl.parity.Gate.refuse"),
        (False, "stages.rl.parity.diagnose"),
        (True, "stages.rl.parity.Gate.compare"),
        (True, "stages.rl.step_files.StepFiles.write"),
        (True, "checkpoints.commit.sync"),
    ],
)
def test_after_a_kill_at_any_moment_of_a_verdict_a_healthy_engine_ends_with_the_same_bits(
    world: Any, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, healthy: bool, moment: str
) -> None:
    """The engine that is not healthy breaks in step 2, and what is killed there looks at the verdict on it."""
    folder = world.attempt()
    with monkeypatch.context() as patch:
        break_engine(patch, step=100 if healthy else 2)
        crash_at(patch, moment, call=1 if moment.endswith(("refuse", "diagnose")) else 2)
        with pytest.raises(Crash):
            run(world.config, world.inputs, folder, Job())
    run(world.config, world.inputs, folder, Job())
    assert files_of(folder) == files_of(undisturbed)


def break_engine(patch: pytest.MonkeyPatch, step: int) -> None:
    """From `step` on the engine's log-probabilities are those of another model."""
    real = Player.play

    def play(self: Player, now: int, tasks: Any) -> Any:
        played = real(self, now, tasks)
        played.logprobs[played.mask] -= 0.5 * (now >= step)
        return played

    patch.setattr(Player, "play", play)


def crash_at(patch: pytest.MonkeyPatch, moment: str, call: int) -> None:
    real, calls = resolve_name(moment), count(1)

    def crash(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise Crash
        return real(*arguments, **options)

    patch.setattr(moment, crash)


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [folder / "model" / "model.safetensors", *sorted((folder / "trajectories").glob("*.h5"))]
    return {path.name: path.read_bytes() for path in paths}


def test_rollouts_of_steps_that_were_trained_anew_are_played_anew_where_they_part(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card, weights that are trained a second time are the same but for rounding; no restart may end at that."""
    folder, real = world.attempt(), rl_run.update
    config = world.changed(checkpoint={"every_steps": 4})

    def update(learner: Learner, *others: Any) -> Any:
        found = real(learner, *others)
        if len(list((folder / "trajectories").iterdir())) == 3:
            raise Crash
        return found

    def rounded(learner: Learner, *others: Any) -> Any:
        found = real(learner, *others)
        with torch.no_grad():
            learner.policy.model.get_parameter("model.norm.weight").add_(0.01)
        return found

    with monkeypatch.context() as patch:
        patch.setattr("stages.rl.synchronous.update", update)
        with pytest.raises(Crash):
            run(config, world.inputs, folder, Job())
    first, second, third = (path.read_bytes() for path in sorted((folder / "trajectories").iterdir()))
    monkeypatch.setattr("stages.rl.synchronous.update", rounded)
    run(config, world.inputs, folder, Job())
    again = [path.read_bytes() for path in sorted((folder / "trajectories").iterdir())]
    assert again[0] == first and again[1] != second and again[2] != third and len(again) == 4
    assert max(read_metrics(folder)["parity"].to_pylist()) < 1e-5


TWO_RANKS = """
import os, signal, sys
from pathlib import Path
from checkpoints.manifest import NAME, Result
from data.job import Job
from stages.rl import parity, run
from stages.rl.config import StageConfig
from stages.rl.step_files import StepFiles
from stages.rl.rollouts import Player

config, synth, sft, folder, rank, moment = sys.argv[1:]
real_play, real_write = Player.play, StepFiles.write

def play(self, step, tasks):
    played = real_play(self, step, tasks)
    if step == 2 and rank == "1" and moment == "diagnose":
        played.logprobs[played.mask] -= 0.5
    return played

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def write(self, step, *others, **options):
    if step == 2 and rank == "1":
        kill()
    real_write(self, step, *others, **options)

Player.play = play
if moment == "write":
    StepFiles.write = write
elif rank == "0":
    parity.diagnose = kill
job = Job(rank=int(rank), world_size=2, rendezvous=Path(folder) / "rendezvous.json")
inputs = {"synth": Result(Path(synth) / NAME), "sft": Result(Path(sft) / NAME)}
run.run(StageConfig.model_validate_json(config), inputs, Path(folder), job)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["diagnose", "write"])
def test_two_ranks_of_which_one_is_killed_at_the_verdict_go_on(world: Any, start: Any, moment: str) -> None:
    """`diagnose`: rank 1 has a broken engine, and rank 0 dies while it looks where; `write`: rank 0 alone commits."""
    folder = world.attempt()
    arguments = [sys.executable, "-c", TWO_RANKS, world.config.model_dump_json(), world.synth, world.sft, folder]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([*map(str, arguments), str(rank), moment], env=environment) for rank in range(2)]
    assert all(process.wait(timeout=100) for process in ranks)
    before = {path.name: path.read_bytes() for path in (folder / "trajectories").glob("step-000002*.h5")}
    assert list(before) == ([] if moment == "diagnose" else ["step-000002-rank-0000.h5"])
    assert [process.wait() for process in start(world.config, folder, 2)] == [0, 0]
    assert files_of(folder).items() >= before.items() and max(read_metrics(folder)["parity"].to_pylist()) < 1e-5


def test_what_is_trained_on_is_what_was_sampled_and_never_its_text_tokenised_again(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field report E4: the chat template made training tokens differ from the rollout's."""
    sampled: set[tuple[int, ...]] = set()
    trained: set[tuple[int, ...]] = set()
    real_step, real_forward = TorchEngine.step, Policy.forward

    def step(self: TorchEngine) -> list[tuple[int, Completion]]:
        made = real_step(self)
        sampled.update(tuple(completion.tokens) for _, completion in made)
        return made

    def forward(self: Policy, packed: Packed, **options: Any) -> Any:
        ends = packed.lengths.cumsum()
        for end, length in zip(ends, packed.lengths, strict=True):
            part = slice(end - length, end)
            trained.add(tuple(packed.tokens[part][packed.learn[part]].tolist()))
        return real_forward(self, packed, **options)

    monkeypatch.setattr(TorchEngine, "step", step)
    monkeypatch.setattr(Policy, "forward", forward)
    run(world.changed(steps=2), world.inputs, world.attempt(), Job())
    assert len(trained) > 8 and trained - {()} <= sampled
    tokenizer = load_tokenizer(world.sft / "model")
    again = {tokens: tuple(encode_completion(tokenizer, decode(tokenizer, list(tokens)))) for tokens in sampled}
    assert any(tokens != other for tokens, other in again.items()), "their texts have other ids"


PROGRAM = """
import json, sys
from pathlib import Path
import torch
from data.job import Job
from data.tokenizer import load_tokenizer
from stages.rl.config import RLConfig
from stages.rl.parity import Gate
from stages.rollout.config import EngineConfig, SamplingConfig
from stages.rollout.parity import ParityError
from stages.rollout.torch.engine import TorchEngine, unsharded_copy
from stages.trainer.config import OptimizerConfig
from stages.trainer.device import distributed
from stages.trainer.learner import Learner
from stages.trainer.policy import load_policy

model, folder, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
job = Job(rank=rank, world_size=2, rendezvous=folder / "rendezvous.json")
said = {}
with distributed(job) as device:
    policy = load_policy(model, 0)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(weight))))
    learner = Learner(policy, OptimizerConfig(), 0.01, 10, job)
    engine = TorchEngine(unsharded_copy(policy.model, device), 2)
    engine.update(learner.full_weights(), 1)
    gate = Gate(learner, engine, RLConfig(sampling=SamplingConfig(max_new_tokens=8, slots=4)), [[3, 4, 3]])

    def check(name):
        try:
            gate.check_generation(1)
            said[name] = "passes"
        except ParityError as error:
            said[name] = str(error)

    check("whole")
    weight = engine.model.get_parameter("model.layers.1.post_attention_layernorm.weight")
    if rank == 1:
        weight.data += 1
    check("one rank")
    weight.data += rank == 0
    check("both ranks")
    if rank == 1:
        engine.update(learner.full_weights(), 1)
    else:
        list(learner.full_weights())
        engine.version = 0
    check("stale")
(folder / f"said-{rank}.json").write_text(json.dumps(said))
"""


@pytest.mark.slow
def test_a_rank_whose_engine_parts_stops_all_ranks_with_one_verdict(world: Any, tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", PROGRAM, str(world.sft / "model"), str(tmp_path)]
    ranks = [subprocess.Popen([*arguments, str(rank)], env=environment) for rank in range(2)]
    assert [process.wait(timeout=100) for process in ranks] == [0, 0]
    one, other = (json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in range(2))
    assert one == other
    assert one["whole"] == "passes"
    assert "most on rank 1" in one["one rank"]
    for case in ("one rank", "both ranks"):
        assert "They part in: layer norm." in one[case]
        assert "1 of 24 differ; model.layers.1.post_attention_layernorm.weight by 1.0e+00" in one[case]
    assert "most on rank 0" in one["stale"] and "They part in: stale weights." in one["stale"]
