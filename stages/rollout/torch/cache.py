"""Keys and values of the sequences that are being generated, one slot each, and the two ways to attend with them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedConfig


class SlotCache:
    """`layers` x (keys, values), each [slots, key-value heads, positions, head size].

    What lies at or beyond a slot's length is stale but finite, and never attended to.
    """

    def __init__(self, config: PreTrainedConfig, slots: int, positions: int, like: Tensor) -> None:
        """An empty cache for a model of `config`, of the type and on the device of `like`."""
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        shape = (slots, getattr(config, "num_key_value_heads", heads), positions, size)
        layers = range(config.num_hidden_layers)
        self.keys = [like.new_zeros(shape) for _ in layers]
        self.values = [like.new_zeros(shape) for _ in layers]

    def keep(self, slots: Tensor) -> None:
        """Leave only `slots`, renumbered in their order."""
        self.keys = [keys[slots] for keys in self.keys]
        self.values = [values[slots] for values in self.values]


@dataclass(frozen=True)
class PrefillContext:
    """Prompts side by side as one row of tokens; what they leave in the cache goes to the slots that will go on."""

    cache: SlotCache
    padded: Tensor
    """[prompts, longest], index of each prompt's token in the row; beyond its end any index."""
    packed: Tensor
    """[tokens], index into the flattened `padded` of each token of the row."""
    slots: Tensor
    """[slots that begin]"""
    prompt_of: Tensor
    """[slots that begin], which prompt each has: samples of one prompt share its prefill."""

    @staticmethod
    def of(cache: SlotCache, lengths: Sequence[int], slots: Tensor, prompt_of: Tensor) -> "PrefillContext":
        """For prompts of `lengths`."""
        count = torch.tensor(lengths)
        inside = torch.arange(max(lengths)) < count[:, None]
        starts = count.cumsum(0) - count
        padded = torch.where(inside, starts[:, None] + torch.arange(max(lengths)), 0)
        packed = inside.flatten().nonzero()[:, 0]
        return PrefillContext(cache, padded.to(slots.device), packed.to(slots.device), slots, prompt_of)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Causal attention inside each prompt; [1, heads, tokens, size] to [1, tokens, heads, size]."""
        query, key, value = (self._pad(tensor) for tensor in (query, key, value))
        length = self.padded.shape[1]
        self.cache.keys[layer][self.slots, :, :length] = key[self.prompt_of]
        self.cache.values[layer][self.slots, :, :length] = value[self.prompt_of]
        seen = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
        return seen.transpose(1, 2).flatten(0, 1)[self.packed][None]

    def _pad(self, tensor: Tensor) -> Tensor:
        return tensor[0].transpose(0, 1)[self.padded].transpose(1, 2)


@dataclass(frozen=True)
class DecodeContext:
    """One new token in every slot."""

    cache: SlotCache
    positions: Tensor
    """[slots], where the new token goes: the number of tokens before it."""
    slots: Tensor
    """[slots], 0, 1, ..."""
    seen: Tensor
    """[slots, 1, 1, width], true up to the slot's position; no slot that matters is longer than the width."""

    @staticmethod
    def of(cache: SlotCache, positions: Tensor, width: int) -> "DecodeContext":
        """For slots at `positions`, all that matter below `width`."""
        numbers = torch.arange(max(width, len(positions)), device=positions.device)
        seen = (numbers[:width] <= positions[:, None])[:, None, None]
        return DecodeContext(cache, positions, numbers[: len(positions)], seen)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of the new token to its slot; [slots, heads, 1, size] to [slots, 1, heads, size]."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[self.slots, :, self.positions] = key[:, :, 0]
        values[self.slots, :, self.positions] = value[:, :, 0]
        slots, heads, _, size = query.shape
        # The heads that share a key-value head stand where a sequence's tokens would: the cache is never repeated.
        grouped = query.reshape(slots, keys.shape[1], -1, size)
        width = self.seen.shape[-1]
        out = scaled_dot_product_attention(
            grouped, keys[:, :, :width], values[:, :, :width], attn_mask=self.seen, scale=scale
        )
        return out.reshape(slots, 1, heads, size)
