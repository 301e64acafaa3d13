"""The stage from end to end, on a model so small that a run takes a second."""

import json
import shutil
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForCausalLM

from checkpoints.manifest import NAME, Result, commit_manifest
from data.job import Job, Stopped
from data.metrics import read_metrics
from data.shards import read_split
from data.trajectories import read_trajectories
from data.warnings import read_warnings
from stages.environments.rows import Rows
from stages.rl import engine as rl_engine
from stages.rl.config import StageConfig
from stages.rl.prompts import request_seed
from stages.rl.rollouts import Player
from stages.rl.run import run
from stages.rollout.parity import ParityError
from stages.trainer.learner import Learner


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def trajectories(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "trajectories").glob("*"))}


def assert_same(left: Path, right: Path) -> None:
    assert weights(left) == weights(right)
    assert trajectories(left) == trajectories(right)


def test_the_result_is_a_model_the_trajectories_and_a_manifest(world: Any, undisturbed: Path) -> None:
    result = Result(undisturbed / NAME)
    assert len(result.paths("trajectories/")) == world.config.rl.steps
    assert result.paths("metrics/")
    metrics = result.manifest.metrics
    assert metrics["steps"] == 4
    assert {"reward_first", "reward_last", "tokens", "seconds"} <= metrics.keys()
    assert result.manifest.environment_hash and result.manifest.weights_digest and result.manifest.tokenizer_digest
    model = AutoModelForCausalLM.from_pretrained(undisturbed / "model")
    assert model(torch.tensor([[1, 3]])).logits.shape == (1, 2, 8)
    assert weights(undisturbed) != weights(world.sft)


class Columns:
    """A table of which only a few rows at a time may become objects."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.table[name]

    def slice(self, start: int, count: int) -> "Columns":
        return Columns(self.table.slice(start, count))

    def to_pylist(self) -> list[dict[str, Any]]:
        assert len(self.table) <= 8, "all rows of a split as dictionaries"
        return self.table.to_pylist()


def test_the_rows_of_a_split_stay_in_columns(world: Any, undisturbed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.rl.parts.read_split", lambda *arguments: Columns(read_split(*arguments)))
    folder = world.attempt()
    run(world.config, world.inputs, folder, Job())
    assert_same(folder, undisturbed)


def test_the_metrics_of_a_step_are_all_there(undisturbed: Path) -> None:
    table = read_metrics(undisturbed)
    assert table["step"].to_pylist() == [1, 2, 3, 4]
    wanted = {"reward", "success", "completion_length", "entropy", "kl", "clip_share", "importance_ratio"}
    wanted |= {"gradient_norm", "learning_rate", "tokens_per_second", "seconds_rollout", "seconds_update", "parity"}
    wanted |= {"seconds_experience", "rollout_tokens_per_second", "update_tokens_per_second", "importance_ratio_max"}
    wanted |= {"completion_length_shortest", "completion_length_longest", "groups_without_signal", "samples_skipped"}
    assert wanted | {"reward/verifier_mean"} <= set(table.column_names)
    for row in table.to_pylist():
        assert row["importance_ratio"] <= row["importance_ratio_max"] * (1 + 1e-6)
        assert row["completion_length_shortest"] <= row["completion_length"] <= row["completion_length_longest"]
        assert 0 <= row["groups_without_signal"] <= 1 and row["rollout_tokens_per_second"] > 0
    assert read_warnings(undisturbed) == [] and Result(undisturbed / NAME).paths("warnings.json")
    assert 0 < table["entropy"][0].as_py() < np.log(8) + 1e-6


def test_trajectories_hold_what_was_played(world: Any, undisturbed: Path) -> None:
    played, attributes = read_trajectories(undisturbed / "trajectories" / "step-000003-rank-0000.h5")
    assert (attributes["step"], attributes["policy_version"], attributes["world_size"]) == (3, 2, 1)
    assert len(attributes["environment_hash"]) == 64
    assert len(played) == 16
    assert set(played.versions[played.mask]) == {2} and set(played.versions[~played.mask]) == {-1}
    assert (played.logprobs[played.mask] < 0).all()
    assert played.groups.tolist() == [slot for slot in range(4) for _ in range(4)]
    assert played.seeds.tolist() == [request_seed(5, 3, slot, sample) for slot in range(4) for sample in range(4)]
    ends = [played.sequence(index)[0][-1] == 2 for index in range(16)]
    assert played.finished.tolist() == ends
    assert not played.rewards[~played.finished].any()


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "rloo"])
def test_every_shipped_algorithm_runs(world: Any, algorithm: str) -> None:
    folder = world.attempt()
    run(world.changed(algorithm=algorithm, steps=2), world.inputs, folder, Job())
    names = read_metrics(folder).column_names
    assert ("explained_variance" in names) == (algorithm == "ppo")


def test_the_same_config_gives_the_same_bits(world: Any, undisturbed: Path) -> None:
    again = world.attempt()
    run(world.config, world.inputs, again, Job())
    assert_same(undisturbed, again)


def test_the_size_of_a_micro_batch_does_not_change_what_is_learned(world: Any, undisturbed: Path) -> None:
    whole = world.attempt()
    run(world.changed(micro_batch_tokens=10_000), world.inputs, whole, Job())
    one, other = (AutoModelForCausalLM.from_pretrained(folder / "model") for folder in (undisturbed, whole))
    for left, right in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=0)


class Crash(BaseException):
    """Like a kill, but it leaves the process of the test alive."""


CRASHES = [
    ("stages.rl.step_files.write_trajectories", 1),
    ("stages.rl.step_files.write_trajectories", 3),
    ("stages.rl.synchronous.make_experience", 2),
    ("stages.rl.synchronous.make_experience", 4),
    ("stages.rl.synchronous.update", 3),
    ("data.metrics.Metrics.commit", 1),
    ("stages.trainer.learner.Learner.save", 1),
    ("stages.trainer.learner.Learner.save", 2),
    ("stages.trainer.learner.Learner.export", 1),
    ("stages.rl.run.commit_manifest", 1),
]


@pytest.mark.parametrize(("where", "count"), CRASHES)
def test_a_crash_anywhere_changes_nothing(
    world: Any, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, where: str, count: int
) -> None:
    folder = world.attempt()
    real, calls = resolve_name(where), 0

    def crash(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            raise Crash
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(where, crash)
        with pytest.raises(Crash):
            run(world.config, world.inputs, folder, Job())
    run(world.config, world.inputs, folder, Job())
    assert_same(undisturbed, folder)
    assert read_metrics(folder)["step"].to_pylist() == [1, 2, 3, 4]


def test_rollouts_that_were_played_are_not_played_again(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = world.attempt()
    played: list[int] = []
    crashed: list[int] = []
    real_play, real_update = Player.play, rl_engine.refresh

    def play(self: Player, step: int, tasks: Any) -> Any:
        played.append(step)
        return real_play(self, step, tasks)

    def refresh(engine: Any, learner: Any, version: int) -> None:
        if version == 3 and not crashed:
            crashed.append(version)
            raise Crash
        real_update(engine, learner, version)

    monkeypatch.setattr(Player, "play", play)
    monkeypatch.setattr("stages.rl.synchronous.refresh", refresh)
    with pytest.raises(Crash):
        run(world.config, world.inputs, folder, Job())
    run(world.config, world.inputs, folder, Job())
    assert played == [1, 2, 3, 4]


def test_asked_to_stop_it_commits_the_step_and_goes_on_later(world: Any, undisturbed: Path) -> None:
    folder, job = world.attempt(), Job()
    job.stop.set()
    for step in (1, 2, 3):
        with pytest.raises(Stopped, match=f"committed step {step} of 4"):
            run(world.config, world.inputs, folder, job)
    assert not (folder / NAME).exists()
    run(world.config, world.inputs, folder, Job())
    assert_same(undisturbed, folder)


def test_an_engine_without_the_policys_weights_fails_the_job(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_engine(config: StageConfig, learner: Learner, *others: Any) -> Any:
        engine: Any = real(config, learner, *others)
        engine.model = AutoModelForCausalLM.from_pretrained(world.sft / "model", attn_implementation="qianka")
        engine.update(((name, tensor + 0.01) for name, tensor in learner.full_weights()), 0)
        return engine

    real = rl_engine.make_engine
    monkeypatch.setattr("stages.rl.synchronous.make_engine", make_engine)
    monkeypatch.setattr("stages.rl.synchronous.refresh", lambda *_: None)
    with pytest.raises(ParityError, match=r"disagree by .* nats \(limit 1e-04\)"):
        run(world.config, world.inputs, world.attempt(), Job())


def test_a_checkpoint_without_the_critic_is_an_error(world: Any) -> None:
    """Field report R6."""
    folder, job = world.attempt(), Job()
    job.stop.set()
    with pytest.raises(Stopped):
        run(world.config, world.inputs, folder, job)
    with pytest.raises(ValueError, match="value_head"):
        run(world.changed(algorithm="ppo"), world.inputs, folder, Job())


def failing(monkeypatch: pytest.MonkeyPatch, fails: Any) -> None:
    real = Rows.grade

    def grade(self: Rows, task: Any, completion: str) -> tuple[float, bool]:
        if fails(task):
            raise OSError("the grader's disk is full")
        return real(self, task, completion)

    monkeypatch.setattr(Rows, "grade", grade)
    monkeypatch.setattr("stages.rl.parts.self_test", lambda *_: None)


def test_ungraded_samples_are_left_out_counted_and_in_the_end_set_aside(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, lambda task: task["prompt"] == "00011:")
    folder = world.attempt()
    run(world.changed(steps=24), world.inputs, folder, Job())
    table = read_metrics(folder)
    failures = table["grader_failures"].to_pylist()
    assert len([failed for failed in failures if failed]) == 3  # a sample that was cut is not put to the grader
    assert table["prompts_set_aside"].to_pylist()[-1] == 1
    step, failed = next(pair for pair in zip(table["step"].to_pylist(), failures, strict=True) if pair[1])
    played, _ = read_trajectories(folder / "trajectories" / f"step-{step:06d}-rank-0000.h5")
    assert (~played.graded).sum() == np.isnan(played.terms).sum() == failed and not played.rewards[~played.graded].any()
    state = json.loads((folder / "checkpoints" / "step-000024" / "state.json").read_text())
    assert list(state["state"]["caller"]["failures"].values()) == [3]
    assert table["reward/verifier_failed"].to_pylist() == [failed / 16 for failed in failures]


def test_a_grader_that_always_fails_ends_the_run_which_goes_on_once_it_is_mended(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world.attempt()
    with monkeypatch.context() as broken:
        failing(broken, lambda task: True)
        with pytest.raises(
            RuntimeError, match=r"the grader failed on (\d+) of the \1 samples .* the term verifier, for example of row"
        ):
            run(world.config, world.inputs, folder, Job())
    assert (folder / "trajectories" / "step-000001-rank-0000.h5.refused").exists()
    run(world.config, world.inputs, folder, Job())
    assert read_metrics(folder)["grader_failures"].to_pylist() == [0.0] * 4


def test_a_step_with_nothing_to_learn_counts(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "grade", lambda self, task, completion: (float("It is" in completion), True))
    folder = world.attempt()
    run(world.config, world.inputs, folder, Job())
    table = read_metrics(folder)
    assert table["step"].to_pylist() == [1, 2, 3, 4]
    assert table["samples_skipped"].to_pylist() == [16.0] * 4
    assert "gradient_norm" not in table.column_names
    one, other = (AutoModelForCausalLM.from_pretrained(path / "model") for path in (world.sft, folder))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_prompt_that_is_too_long_is_named_by_its_row(world: Any, tmp_path: Path) -> None:
    sft = tmp_path / world.sft.name
    shutil.copytree(world.sft, sft)
    path = sft / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 7}))
    commit_manifest(sft, list((sft / "model").iterdir()), {})
    with pytest.raises(ValueError, match=r"row [0-9a-f]{32}: its prompt .* has 7 tokens, and the model's context of 7"):
        run(world.config, world.inputs | {"sft": Result(sft / NAME)}, world.attempt(), Job())


def test_a_metric_with_a_name_of_the_stage_is_refused(world: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = (Path(run.__code__.co_filename).parents[1] / "algorithms" / "rloo.yaml").read_text()
    path.write_text(text.replace("  kl: kl\n", "  reward: kl\n"))
    with pytest.raises(ValueError, match="the rl stage has its own reward"):
        run(world.changed(algorithm=str(path)), world.inputs, world.attempt(), Job())


def test_greedy_rollouts_are_refused_by_the_config(world: Any) -> None:
    with pytest.raises(ValueError, match="rl.sampling.temperature"):
        StageConfig.model_validate(world.config.model_dump() | {"rl": {"sampling": {"temperature": 0}}})
