"""Attention for packed sequences: each attends to itself alone, and no other layer computes on padding.

The packed row is gathered into small padded batches of sequences of about equal length, causal attention runs on those,
and the result is gathered back. On a card this is scaled_dot_product_attention's own kernel with a little padding; a
variable-length kernel would save the gathers.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from data.packing import Packed

WASTE = 1.15
"""Padded tokens of a group over its real ones, before a shorter sequence opens a new group."""


class PackedContext:
    """Implements `attention.AttentionContext` for sequences of `lengths` [sequences], side by side in one row.

    Behind them may be `padding`.
    """

    def __init__(self, lengths: npt.NDArray[np.int64], device: torch.device, padding: int = 0) -> None:
        starts = np.cumsum(lengths) - lengths
        self.groups: list[tuple[Tensor, tuple[int, int]]] = []
        # Rows that pad the whole row, behind all sequences, are given what the first token has seen.
        back = np.zeros(int(lengths.sum()) + padding, np.int64)
        offset = 0
        for members in _length_groups(lengths):
            sizes, width = lengths[members], int(lengths[members].max())
            # Padding repeats the sequence's own last token: it comes after all real queries, so none of them sees it.
            column = np.minimum(np.arange(width), sizes[:, None] - 1)
            gather = starts[members][:, None] + column
            real = np.arange(width) < sizes[:, None]
            back[gather[real]] = offset + np.flatnonzero(real)
            self.groups.append((torch.from_numpy(gather.ravel()).to(device), (len(members), width)))
            offset += gather.size
        self.back = torch.from_numpy(back).to(device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See `AttentionContext`; batch is 1, tokens are the packed row's."""
        rows = [heads[0].transpose(0, 1) for heads in (query, key, value)]
        outputs = [self._attend_group(gather, shape, rows, scale) for gather, shape in self.groups]
        return torch.cat(outputs).index_select(0, self.back)[None]

    @staticmethod
    def _attend_group(gather: Tensor, shape: tuple[int, int], rows: list[Tensor], scale: float) -> Tensor:
        query, key, value = (row.index_select(0, gather).unflatten(0, shape).transpose(1, 2) for row in rows)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
        return attended.transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True)
class PackedInputs:
    """A packed row on a device, with the context of its sequences: made once for all policies that read it."""

    tokens: Tensor
    """[T], on a CPU with `padding` behind the sequences."""
    positions: Tensor
    """[T]"""
    learned: Tensor
    """[K], places in the row of the tokens whose prediction is trained."""
    context: PackedContext

    @staticmethod
    def of(packed: Packed, device: torch.device) -> "PackedInputs":
        """Bring `packed` to `device`."""
        more = padding(len(packed.tokens)) if device.type == "cpu" else 0
        tokens, positions = (np.pad(row, (0, more)) for row in (packed.tokens, packed.positions))
        return PackedInputs(
            tokens=torch.from_numpy(tokens).to(device),
            positions=torch.from_numpy(positions).to(device),
            learned=torch.from_numpy(packed.learn.nonzero()[0]).to(device),
            context=PackedContext(packed.lengths, device, more),
        )


def padding(count: int) -> int:
    """Tokens to add to `count`, at most a sixteenth or 7, for few sizes: a new one costs oneDNN a millisecond."""
    return -count % max(8, 2 ** (count.bit_length() - 5))


def _length_groups(lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Sequence indices, longest first, cut where padding to the group's longest would waste too much."""
    order = np.argsort(-lengths, kind="stable")
    groups: list[npt.NDArray[np.int64]] = []
    first, real = 0, 0
    for position, index in enumerate(order):
        padded = int(lengths[order[first]]) * (position - first + 1)
        if padded > WASTE * (real + int(lengths[index])):
            groups.append(order[first:position])
            first, real = position, 0
        real += int(lengths[index])
    return [*groups, order[first:]]
