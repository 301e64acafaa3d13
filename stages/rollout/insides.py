"""What can be seen inside an engine that computes with modules of transformers: weights, and what each module gives.

Names are those of Hugging Face on both sides, so that what is compared is the same by name.
"""

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

PARTS = {
    "rope": r"rotary",
    "embedding": r"embed|wte|wpe",
    "head": r"lm_head|embed_out",
    "layer norm": r"(layers|h|blocks)\.\d+\..*(norm|ln_)",
    "final norm": r"norm|ln_f",
    "attention": r"attn|attention",
    "mlp": r"mlp|feed_forward|experts|moe",
}
"""Part of a decoder, and what the names of its weights and modules have in common; the first that fits."""
MOST_TOKENS = 128
"""Of a sequence whose outputs are compared: those of every module are held for a moment."""


class Parted(NamedTuple):
    """A weight, or a module's output, that is not the same on both sides."""

    name: str
    difference: float
    """The largest of an entry; of an output, as a share of its largest entry."""

    @property
    def part(self) -> str:
        """The part of a decoder that it belongs to."""
        return next((part for part, pattern in PARTS.items() if re.search(pattern, self.name)), "model")


@torch.no_grad()
def parted_weights(
    policy: nn.Module, weights: Iterable[tuple[str, Tensor]], engine: nn.Module | None
) -> tuple[list[Parted], int]:
    """The engine's weights that are not `weights`, the whole ones of `policy`, and how many were compared.

    Compared in the engine's precision, bit for bit; a tied weight under each of its names. All of `weights` is taken
    even where `engine` is None, since all ranks gather them together.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in policy.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    aliases = {alias: group for group in names.values() for alias in group}
    own = {} if engine is None else dict(engine.named_parameters(remove_duplicate=False))
    parted: dict[int, Parted] = {}
    for name, tensor in weights:
        for alias in aliases.get(name, [name]):
            if alias in own:
                mine = own[alias].to(tensor.device)
                difference = float((mine.float() - tensor.to(mine.dtype).float()).abs().max())
                if difference != 0:
                    parted.setdefault(id(own[alias]), Parted(alias, difference))
    return list(parted.values()), len({id(parameter) for parameter in own.values()})


@contextmanager
def outputs(model: nn.Module | None, num_tokens: int) -> Generator[dict[str, Tensor], None, None]:
    """Inside the block, collect what each module of `model` gives for `num_tokens` tokens, in the order it is done.

    Of each module the first output that has so many tokens (or more: padding follows), of which the last
    MOST_TOKENS are kept, on the CPU in float32. Nothing for None.
    """
    found: dict[str, Tensor] = {}

    def keep(name: str, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, Tensor) and first.dim() >= 3 and first.shape[1] >= num_tokens and name not in found:
            found[name] = first.detach()[:1, max(0, num_tokens - MOST_TOKENS) : num_tokens].float().cpu()

    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: keep(name, output))
        for name, module in (model.named_modules() if model is not None else [])
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def first_parted(policy: dict[str, Tensor], engine: dict[str, Tensor], tolerance: float) -> Parted | None:
    """The first module whose outputs differ by more than `tolerance` of the largest entry; None when all agree."""
    for name, expected in policy.items():
        other = engine.get(name)
        if other is not None and other.shape == expected.shape:
            difference = float((other - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
            if not difference <= tolerance:
                return Parted(name, difference)
    return None
