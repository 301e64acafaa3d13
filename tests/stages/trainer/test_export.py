import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from data.job import Job
from data.tokenizer import character_tokenizer, load_tokenizer, tokenizer_digest
from stages.trainer.config import ModelConfig
from stages.trainer.export import check_export, weights_digest, write_model
from stages.trainer.policy import Policy, load_policy


def exported(policy: Policy, model: ModelConfig, folder: Path) -> dict[str, Tensor]:
    weights = {name: tensor.detach() for name, tensor in policy.model.named_parameters()}
    write_model(policy.model, iter(weights.items()), character_tokenizer(model.architecture.alphabet), folder)
    return weights


def rewrite(folder: Path, weights: dict[str, Tensor]) -> None:
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_the_folder_holds_what_was_given(tiny: ModelConfig, one_rank: Job, tmp_path: Path) -> None:
    weights = exported(load_policy(tiny, 1), tiny, tmp_path / "model")
    check_export(tmp_path / "model", weights)
    assert set(load_file(tmp_path / "model" / "model.safetensors")) == set(weights)
    tokenizer = character_tokenizer(tiny.architecture.alphabet)
    assert tokenizer_digest(load_tokenizer(tmp_path / "model")) == tokenizer_digest(tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_second_export_replaces_the_first(tiny: ModelConfig, one_rank: Job, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    exported(load_policy(tiny, 1), tiny, folder)
    first = weights_digest(folder)
    exported(load_policy(tiny, 2), tiny, folder)
    assert weights_digest(folder) != first
    exported(load_policy(tiny, 1), tiny, folder)
    assert weights_digest(folder) == first
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("damage", ["value", "shape", "type", "missing", "extra"])
def test_every_difference_to_the_live_weights_is_found(
    tiny: ModelConfig, one_rank: Job, tmp_path: Path, damage: str
) -> None:
    weights = exported(load_policy(tiny, 1), tiny, tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    on_disk = load_file(tmp_path / "model.safetensors")
    match damage:
        case "value":
            on_disk[name][3, 4] += 1e-6
        case "shape":
            on_disk[name] = on_disk[name].T.contiguous()
        case "type":
            on_disk[name] = on_disk[name].bfloat16()
        case "missing":
            del on_disk[name]
        case _:
            name = "model.more.weight"
            on_disk[name] = torch.zeros(3)
    rewrite(tmp_path, on_disk)
    with pytest.raises(ValueError, match=name):
        check_export(tmp_path, weights)


def test_the_digest_does_not_depend_on_how_the_weights_are_in_files(
    tiny: ModelConfig, one_rank: Job, tmp_path: Path
) -> None:
    exported(load_policy(tiny, 1), tiny, tmp_path)
    before = weights_digest(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    names = sorted(weights)
    rewrite(tmp_path, {name: weights[name] for name in names[:5]})
    save_file({name: weights[name] for name in names[5:]}, tmp_path / "more.safetensors", {"format": "pt"})
    assert weights_digest(tmp_path) == before


def test_a_full_disk_is_an_error_that_names_the_folder_and_leaves_the_last_export(
    tiny: ModelConfig, one_rank: Job, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    exported(load_policy(tiny, 1), tiny, folder)
    first = weights_digest(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"model\.writing"):
            exported(load_policy(tiny, 2), tiny, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert weights_digest(folder) == first


def test_weights_that_are_not_finite_are_no_result(tiny: ModelConfig, one_rank: Job, tmp_path: Path) -> None:
    policy = load_policy(tiny, 1)
    with torch.no_grad():
        next(policy.model.parameters()).view(-1)[0] = float("nan")
    with pytest.raises(ValueError, match="not finite: training has diverged"):
        exported(policy, tiny, tmp_path / "model")
    assert not (tmp_path / "model").exists()
