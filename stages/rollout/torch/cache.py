"""Keys and values of the sequences that are being generated, one row each, and the three ways to attend with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import psutil
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedConfig


def memory_of(device: torch.device) -> int:
    """Bytes that are free on the card, with what torch holds and does not use; of a CPU's machine, all it has.

    What is free on a machine changes from one start to the next, and with it the number of rows: the bits would differ.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return psutil.virtual_memory().total


class SlotCache:
    """Keys, each layer [rows, key-value heads, head size, positions], and values [..., positions, head size].

    Keys lie as one new token's query multiplies them. What lies at or beyond a row's length is stale but finite, and
    never attended to.
    """

    def __init__(self, config: PreTrainedConfig, rows: int, positions: int, like: Tensor) -> None:
        """An empty cache for a model of `config`, of the type and on the device of `like`."""
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        shared = getattr(config, "num_key_value_heads", heads)
        layers = range(config.num_hidden_layers)
        self.keys = [like.new_zeros(rows, shared, size, positions) for _ in layers]
        self.values = [like.new_zeros(rows, shared, positions, size) for _ in layers]

    @property
    def positions(self) -> int:
        """Most tokens of a row."""
        return self.keys[0].shape[-1]

    @property
    def bytes_each(self) -> int:
        """Of one position of one row."""
        return sum(tensor.shape[1] * tensor.shape[2] * tensor.itemsize for tensor in self.keys) + sum(
            tensor.shape[1] * tensor.shape[3] * tensor.itemsize for tensor in self.values
        )

    def cut(self, rows: int) -> None:
        """Let go of all but the first `rows`; their memory is free with the next `grow`."""
        self.keys, self.values = [keys[:rows] for keys in self.keys], [values[:rows] for values in self.values]

    def grow(self, rows: int, positions: int) -> None:
        """Make room, and keep what is there."""
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            old_rows, shared, size, old = keys.shape
            self.keys[layer] = keys.new_zeros(rows, shared, size, positions)
            self.keys[layer][:old_rows, ..., :old] = keys
            self.values[layer] = values.new_zeros(rows, shared, positions, size)
            self.values[layer][:old_rows, :, :old] = values

    def move(self, to: Tensor, source: Tensor) -> None:
        """Copy rows `source` to rows `to`."""
        for tensor in (*self.keys, *self.values):
            tensor[to] = tensor[source]


@dataclass(frozen=True)
class Padding:
    """Pieces that lie side by side in one row of tokens, and the padded batch that attention needs."""

    padded: Tensor
    """[pieces, longest], index of each piece's token in the row of tokens; beyond its end any index."""
    packed: Tensor
    """[tokens], index into the flattened `padded` of each token of the row."""

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device) -> "Padding":
        """For pieces of `lengths`."""
        count = torch.tensor(lengths)
        inside = torch.arange(max(lengths)) < count[:, None]
        starts = torch.tensor([0, *accumulate(lengths[:-1])])
        padded = torch.where(inside, starts[:, None] + torch.arange(max(lengths)), 0)
        return Padding(padded.to(device), inside.flatten().nonzero()[:, 0].to(device))

    def pad(self, tensor: Tensor) -> Tensor:
        """From [1, heads, tokens, size] to [pieces, heads, longest, size]."""
        return tensor[0].transpose(0, 1)[self.padded].transpose(1, 2)

    def pack(self, tensor: Tensor) -> Tensor:
        """From [pieces, heads, longest, size] to [1, tokens, heads, size]."""
        return tensor.transpose(1, 2).flatten(0, 1)[self.packed][None]


@dataclass(frozen=True)
class PrefillContext:
    """Whole prompts; what they leave in the cache goes to the rows that will go on."""

    cache: SlotCache
    padding: Padding
    rows: Tensor
    """[rows that begin]"""
    prompt_of: Tensor
    """[rows that begin], which prompt each has: samples of one prompt share its prefill."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Causal attention inside each prompt; see `stages.trainer.attention`."""
        query, key, value = (self.padding.pad(tensor) for tensor in (query, key, value))
        length = query.shape[2]
        self.cache.keys[layer][self.rows, ..., :length] = key[self.prompt_of].transpose(-1, -2)
        self.cache.values[layer][self.rows, :, :length] = value[self.prompt_of]
        seen = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
        return self.padding.pack(seen)


@dataclass(frozen=True)
class ExtendContext:
    """New tokens after those that rows have already, several in each row."""

    cache: SlotCache
    padding: Padding
    rows: Tensor
    """[rows]"""
    row_of: Tensor
    """[tokens], the row of each token."""
    position_of: Tensor
    """[tokens], where each goes."""
    seen: Tensor
    """[rows, 1, longest, width], whether a token sees a position of its row."""

    @staticmethod
    def of(cache: SlotCache, rows: Tensor, kept: Sequence[int], lengths: Sequence[int]) -> "ExtendContext":
        """`lengths` tokens after the `kept` ones of `rows`; the cache has the room."""
        before, count = torch.tensor(kept), torch.tensor(lengths)
        place = before[:, None] + torch.arange(max(lengths))
        seen = torch.arange(int((before + count).max())) <= place[..., None]
        inside = torch.arange(max(lengths)) < count[:, None]
        row_of = rows.repeat_interleave(count.to(rows.device))
        position_of, seen = place[inside].to(rows.device), seen[:, None].to(rows.device)
        return ExtendContext(cache, Padding.of(lengths, rows.device), rows, row_of, position_of, seen)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Causal attention of the new tokens to all of their row; see `stages.trainer.attention`."""
        keys, values, width = self.cache.keys[layer], self.cache.values[layer], self.seen.shape[-1]
        keys[self.row_of, :, :, self.position_of] = key[0].transpose(0, 1)
        values[self.row_of, :, self.position_of] = value[0].transpose(0, 1)
        keys, values = keys[self.rows, ..., :width].transpose(-1, -2), values[self.rows, :, :width]
        query = self.padding.pad(query)
        seen = scaled_dot_product_attention(query, keys, values, attn_mask=self.seen, scale=scale, enable_gqa=True)
        return self.padding.pack(seen)


@dataclass(frozen=True)
class DecodeContext:
    """One new token in each of the first rows."""

    cache: SlotCache
    positions: Tensor
    """[rows], where the new token goes: the number of tokens before it."""
    rows: Tensor
    """[rows], 0, 1, ..."""
    bias: Tensor
    """[rows x key-value heads, 1, width], 0 up to the row's position, beyond it minus infinity. The same in each
    layer, so it is made once. No row that matters is longer than the width."""

    @staticmethod
    def of(cache: SlotCache, positions: Tensor, width: int) -> "DecodeContext":
        """For rows at `positions`, all that matter below `width`."""
        numbers = torch.arange(max(width, len(positions)), device=positions.device)
        unseen = numbers[:width] > positions[:, None]
        bias = torch.zeros(unseen.shape, dtype=cache.values[0].dtype, device=positions.device)
        bias.masked_fill_(unseen, -torch.inf)
        shared = cache.values[0].shape[1]
        bias = bias[:, None].expand(-1, shared, -1).reshape(-1, 1, width)
        return DecodeContext(cache, positions, numbers[: len(positions)], bias)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of the new token to its row; [rows, heads, 1, size] to [rows, 1, heads, size]."""
        keys, values, width = self.cache.keys[layer], self.cache.values[layer], self.bias.shape[-1]
        keys[self.rows, :, :, self.positions] = key[:, :, 0]
        values[self.rows, :, self.positions] = value[:, :, 0]
        rows, heads, _, size = query.shape
        shared = keys.shape[1]
        # The heads that share a key-value head stand where a sequence's tokens would: the cache is never repeated.
        grouped = query.reshape(rows * shared, heads // shared, size)
        scores = torch.baddbmm(self.bias, grouped, keys[:rows].flatten(0, 1)[..., :width], alpha=scale)
        shares = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
        return torch.bmm(shares, values[:rows].flatten(0, 1)[:, :width]).view(rows, 1, heads, size)
