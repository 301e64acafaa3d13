import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from checkpoints.manifest import NAME, Result
from data.job import Flag, Job, Stopped
from data.metrics import read_metrics
from data.progress import read_progress
from stages.sft.config import StageConfig
from stages.sft.examples import read_examples
from stages.sft.run import run
from stages.sft.sampler import batch_rows
from stages.trainer.folder import model_tokenizer
from stages.trainer.policy import load_policy

Config = Callable[..., StageConfig]
Attempt = Callable[[str, dict[str, Any]], Path]


class StopLater(Flag):
    """Is set when the stage looks for the `looks`th time, as by a signal in the loop; it looks after a save as well."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def is_set(self) -> bool:
        self.looks -= 1
        return self.looks == 0


def train(config: StageConfig, synth: Path, folder: Path, job: Job | None = None) -> list[float]:
    """Run the stage and return all its losses so far."""
    run(config, {"synth": Result(synth)}, folder, job or Job())
    return read_metrics(folder)["loss"].to_pylist()


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()


def test_the_loss_falls_and_the_result_is_whole(config: Config, synth: Any, attempt: Attempt) -> None:
    settings, folder = config(steps=30, learning_rate=1e-2), attempt("sft", {})
    losses = train(settings, synth(), folder)
    assert losses[-1] < 0.7 * losses[0]

    result = Result(folder / NAME)
    assert {path.name for path in result.paths("model/")} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert result.paths("metrics/")
    metrics = result.manifest.metrics
    assert (metrics["steps"], metrics["loss"]) == (30, losses[-1])
    table = read_metrics(folder)
    assert [row["step"] for row in table.to_pylist() if row["validation_loss"]] == [5, 10, 15, 20, 25, 30]
    assert metrics["validation_loss"] == table["validation_loss"][-1].as_py()
    assert metrics["tokens"] == sum(table["tokens"].to_pylist())
    assert result.manifest.weights_digest
    assert result.manifest.tokenizer_digest
    assert read_progress(folder)["done"] == 30
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-000028", "step-000030"]
    assert list((folder / "tensorboard").iterdir())


def test_the_result_loads_in_plain_transformers(config: Config, synth: Any, attempt: Attempt) -> None:
    folder = attempt("sft", {})
    train(config(steps=2), synth(), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    ids = torch.tensor([tokenizer("1+2:", add_special_tokens=False).input_ids])
    assert model.generate(ids, max_new_tokens=3).shape[0] == 1
    assert model.config.eos_token_id == tokenizer.eos_token_id == 2


def test_the_loss_is_the_mean_over_the_completions_with_their_end_tokens(
    config: Config, synth: Any, attempt: Attempt
) -> None:
    settings, folder, manifest = config(steps=1), attempt("sft", {}), synth()
    [loss] = train(settings, manifest, folder)
    examples = read_examples(manifest.parent, "train", model_tokenizer(settings.model), 64)
    model = load_policy(settings.model, settings.seed).model
    model.set_attn_implementation("sdpa")
    lost, count = 0.0, 0
    for row in batch_rows(settings.seed, len(examples), 0, 8):
        prompt, completion = examples[row].prompt.tolist(), examples[row].completion.tolist()
        assert completion[-1] == 2
        labels = torch.tensor([[-100] * len(prompt) + completion])
        lost += model(torch.tensor([prompt + completion]), labels=labels).loss.item() * len(completion)
        count += len(completion)
    assert loss == pytest.approx(lost / count, abs=1e-5)


def test_gradient_accumulation_and_recomputation_change_nothing(config: Config, synth: Any, attempt: Attempt) -> None:
    manifest = synth()
    expected = train(config(micro_batch_tokens=10_000), manifest, attempt("sft", {}))
    assert train(config(micro_batch_tokens=40), manifest, attempt("sft", {})) == pytest.approx(expected, abs=1e-4)
    recomputed = config(micro_batch_tokens=10_000, activation_checkpointing=True)
    assert train(recomputed, manifest, attempt("sft", {})) == expected


def test_stopped_again_and_again_it_ends_with_the_weights_of_an_undisturbed_run(
    config: Config, synth: Any, attempt: Attempt
) -> None:
    manifest, undisturbed, stopped = synth(), attempt("sft", {}), attempt("sft", {})
    expected = train(config(), manifest, undisturbed)
    for step in (5, 10):
        with pytest.raises(Stopped, match=f"committed step {step} of 12"):
            train(config(), manifest, stopped, Job(stop=StopLater(6)))
    assert train(config(), manifest, stopped) == expected
    assert weights(stopped) == weights(undisturbed)
    assert Result(stopped / NAME).manifest.metrics["tokens"] == Result(undisturbed / NAME).manifest.metrics["tokens"]


def test_with_time_for_one_step_a_start_it_ends_with_the_weights_of_an_undisturbed_run(
    config: Config, synth: Any, attempt: Attempt
) -> None:
    manifest, undisturbed, hurried = synth(), attempt("sft", {}), attempt("sft", {})
    expected = train(config(steps=4), manifest, undisturbed)
    for step in (1, 2, 3, 4):
        with pytest.raises(Stopped, match=rf"s are left, a step takes .* and a save .*, committed step {step} of 4"):
            train(config(steps=4), manifest, hurried, Job(ends_at=time.time() + 14))
    assert train(config(steps=4), manifest, hurried) == expected
    assert weights(hurried) == weights(undisturbed)


def test_a_finished_training_without_a_manifest_is_only_exported(config: Config, synth: Any, attempt: Attempt) -> None:
    manifest, folder = synth(), attempt("sft", {})
    train(config(), manifest, folder)
    first, before = Result(folder / NAME).manifest, (folder / "checkpoints" / "step-000012").stat().st_mtime_ns
    (folder / NAME).unlink()
    train(config(), manifest, folder)
    assert Result(folder / NAME).manifest == first
    assert (folder / "checkpoints" / "step-000012").stat().st_mtime_ns == before


def last_step(folder: Path) -> int:
    """Of the checkpoints that are there; those before it may be gone again."""
    return max((int(path.name[5:]) for path in (folder / "checkpoints").glob("step-??????")), default=0)


def test_kill_9_at_random_moments_changes_nothing(
    config: Config, synth: Any, attempt: Attempt, forkserver: multiprocessing.context.ForkServerContext
) -> None:
    settings, manifest = config(checkpoint={"every_steps": 1}), synth()
    undisturbed, killed = attempt("sft", {}), attempt("sft", {})
    expected = train(settings, manifest, undisturbed)
    numbers = random.Random(5)
    for step in (1, 4, 8, 12):
        process = forkserver.Process(target=train, args=(settings, manifest, killed))
        process.start()
        while process.is_alive() and last_step(killed) < step:
            time.sleep(0.005)
        time.sleep(numbers.uniform(0, 0.1))
        process.kill()
        process.join()
        assert step > 4 or not (killed / NAME).exists(), "killed in the middle"
    (killed / NAME).unlink(missing_ok=True)
    assert train(settings, manifest, killed) == expected
    assert weights(killed) == weights(undisturbed)


def train_on_ranks(job: Job, config: StageConfig, synth: Path, folder: Path, stop_after: int) -> list[float]:
    """The losses at the end, or when stopped; only the last rank is asked to stop."""
    if stop_after and job.rank == job.world_size - 1:
        job = dataclasses.replace(job, stop=StopLater(stop_after))
    with contextlib.suppress(Stopped):
        train(config, synth, folder, job)
    return read_metrics(folder)["loss"].to_pylist()


def test_two_ranks_train_on_the_same_samples_with_the_same_losses(
    config: Config, synth: Any, attempt: Attempt, ranks: Any
) -> None:
    manifest, alone, together = synth(), attempt("sft", {}), attempt("sft", {})
    expected = train(config(), manifest, alone)
    assert ranks(train_on_ranks, 2, config(), manifest, together, 0)[0] == pytest.approx(expected, abs=1e-4)
    one, two = read_metrics(alone), read_metrics(together)
    assert one["tokens"].to_pylist() == two["tokens"].to_pylist()
    assert two["validation_loss"].to_pylist()[-1] == pytest.approx(one["validation_loss"].to_pylist()[-1], abs=1e-4)


def test_resumed_by_another_number_of_ranks_it_goes_on_at_the_same_sample(
    config: Config, synth: Any, attempt: Attempt, ranks: Any
) -> None:
    manifest, alone, changing = synth(), attempt("sft", {}), attempt("sft", {})
    expected = train(config(), manifest, alone)
    for world_size, stop_after, steps in ((1, 3, 3), (2, 6, 8), (1, 0, 12)):
        losses = ranks(train_on_ranks, world_size, config(), manifest, changing, stop_after)[0]
        assert losses == pytest.approx(expected[:steps], abs=1e-4)
        state = json.loads((changing / "checkpoints" / f"step-{steps:06d}" / "state.json").read_text())
        assert state["state"]["caller"]["cursor"] == steps * 8


def written_on_ranks(job: Job, config: StageConfig, synth: Path, folder: Path) -> tuple[set[str], list[str]]:
    """What a rank opened for writing below the attempt folder, and what it was warned of."""
    written: set[str] = set()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR) and str(arguments[0]).startswith(str(folder)):
            written.add(str(Path(arguments[0]).relative_to(folder)))

    sys.addaudithook(watch)
    with warnings.catch_warnings(record=True) as warned:
        train(config, synth, folder, job)
    return written, [str(warning.message) for warning in warned]


def test_every_file_has_one_writer(config: Config, synth: Any, attempt: Attempt, ranks: Any) -> None:
    (first, warned), (second, _) = ranks(written_on_ranks, 2, config(steps=4), synth(), attempt("sft", {}))
    assert "model.writing/tokenizer_config.json" in first
    assert second == {"checkpoints/step-000004.writing/__1_0.distcp"}
    assert not first & second
    assert not warned


def test_without_a_validation_split_there_is_no_validation_loss(config: Config, synth: Any, attempt: Attempt) -> None:
    folder = attempt("sft", {})
    train(config(steps=2), synth(validation=[]), folder)
    assert Result(folder / NAME).manifest.metrics["validation_loss"] is None


def test_a_model_folder_is_fine_tuned(config: Config, synth: Any, attempt: Attempt) -> None:
    manifest, first, second = synth(), attempt("sft", {}), attempt("sft", {})
    losses = train(config(steps=20, learning_rate=1e-2), manifest, first)
    again = train(config({"folder": str(first / "model")}, steps=2, learning_rate=1e-5), manifest, second)
    assert again[0] < losses[0]
    assert Result(second / NAME).manifest.tokenizer_digest == Result(first / NAME).manifest.tokenizer_digest


def test_mistakes_are_told_before_the_first_step(config: Config, synth: Any, attempt: Attempt, tmp_path: Path) -> None:
    manifest = synth()
    mistakes = {
        "does not exist": config({"folder": str(tmp_path / "nowhere")}),
        r"more than the context of 10.*sft\.max_tokens": config(max_tokens=10),
        "more than the context of 16": config({"architecture": {"hidden_size": 32, "max_positions": 16}}),
        "'1' in": config({"architecture": {"hidden_size": 32, "alphabet": "0+:;>23456789"}}),
    }
    for message, settings in mistakes.items():
        folder = attempt("sft", {})
        with pytest.raises(ValueError, match=message):
            train(settings, manifest, folder)
        assert not (folder / "checkpoints").exists()
