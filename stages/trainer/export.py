"""The model as a Hugging Face folder, checked tensor by tensor against the weights that were trained."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from checkpoints.commit import ASIDE, sync


def write_model(
    model: PreTrainedModel, weights: Iterator[tuple[str, Tensor]], tokenizer: PreTrainedTokenizerFast, folder: Path
) -> list[Path]:
    """Write `folder` (config, safetensors, tokenizer) with `weights`, and return its files.

    It appears when it is whole, and replaces one that is there. All ranks call it; rank 0 gathers the weights one by
    one in its memory and writes. Raises ValueError when a tensor on disk is not the one that was given.
    """
    gathered: dict[str, Tensor] = {}
    for name, tensor in weights:
        if dist.get_rank() == 0:
            gathered[name] = tensor.cpu()
    if dist.get_rank() == 0:
        aside = folder.with_name(folder.name + ASIDE)
        shutil.rmtree(aside, ignore_errors=True)
        try:
            model.save_pretrained(aside, state_dict=dict(gathered))
        except SafetensorError as error:  # a full disk, for example, without the name of the file
            raise OSError(f"{aside}: {error}") from error
        tokenizer.save_pretrained(aside)
        check_export(aside, gathered)
        _commit(aside, folder)
    dist.barrier()
    return sorted(path for path in folder.rglob("*") if path.is_file())


def check_export(folder: Path, weights: dict[str, Tensor]) -> None:
    """Raise ValueError unless `folder` holds exactly `weights`: names, shapes, types, and every bit of the values.

    Weights that are not finite are refused too: no stage could go on with them.
    """
    found = dict(_describe(read_weights(folder)))
    expected = dict(_describe(iter(weights.items())))
    for name in sorted(found.keys() | expected.keys()):
        if name in weights and not torch.isfinite(weights[name]).all():
            raise ValueError(f"{name} is not finite: training has diverged; try a lower learning rate")
        if found.get(name) != expected.get(name):
            there, wanted = found.get(name, "nothing"), expected.get(name, "nothing")
            raise ValueError(f"{folder}: {name} is {there} on disk, but {wanted} was trained")


def weights_digest(folder: Path) -> str:
    """SHA-256 of the names, types, shapes and values of a Hugging Face folder's weights, however they are in files."""
    lines = [f"{name} {description}" for name, description in sorted(_describe(read_weights(folder)))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of all safetensors files in `folder`, by name."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                yield name, file.get_tensor(name)


def _describe(weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    for name, tensor in weights:
        content = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data
        yield name, f"{tensor.dtype} {list(tensor.shape)} sha256:{hashlib.sha256(content).hexdigest()}"


def _commit(aside: Path, folder: Path) -> None:
    """Rename a whole folder into place. Killed in between, it is missing, and the next start writes it again."""
    for path in (*aside.rglob("*"), aside):
        sync(path)
    old = folder.with_name(f"{folder.name}.old{ASIDE}")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.replace(old)
    aside.replace(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
