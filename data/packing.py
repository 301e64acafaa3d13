"""Sequences side by side without padding, and how they are shared out to ranks and forward passes."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Tokens = Sequence[int] | npt.NDArray[np.integer]


class Packed(NamedTuple):
    """Sequences laid end to end, T tokens in all."""

    tokens: npt.NDArray[np.int64]
    """[T]"""
    positions: npt.NDArray[np.int64]
    """[T], each sequence from 0."""
    lengths: npt.NDArray[np.int64]
    """[sequences], their sum is T."""
    learn: npt.NDArray[np.bool_]
    """[T], true on the tokens whose prediction is trained: those of the completions, or those that the policy chose."""


def pack(sequences: Sequence[tuple[Tokens, Tokens]]) -> Packed:
    """Lay (prompt, completion) pairs side by side, in their order; completion tokens are learned.

    No sequences at all give one token from which nothing is learned, so that a rank without work can take part in a
    forward pass with the others.
    """
    assert all(len(prompt) > 0 for prompt, _ in sequences), "the first token of a sequence has nothing to predict it"
    if not sequences:
        zero = np.zeros(1, np.int64)
        return Packed(zero, zero, np.ones(1, np.int64), np.zeros(1, np.bool_))
    parts = [part for sequence in sequences for part in sequence]
    sizes = np.array([len(part) for part in parts], np.int64)
    return _side_by_side(parts, sizes[0::2] + sizes[1::2], np.repeat(np.tile([False, True], len(sequences)), sizes))


def pack_masked(sequences: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]]) -> Packed:
    """The same for (tokens, learn) pairs: an episode has learned tokens in several places, the first token never."""
    assert not any(learn[0] for _, learn in sequences), "the first token of a sequence has nothing to predict it"
    if not sequences:
        return pack([])
    lengths = np.array([len(tokens) for tokens, _ in sequences], np.int64)
    return _side_by_side([tokens for tokens, _ in sequences], lengths, np.concatenate([m for _, m in sequences]))


def _side_by_side(parts: Sequence[Tokens], lengths: npt.NDArray[np.int64], learn: npt.NDArray[np.bool_]) -> Packed:
    return Packed(
        tokens=np.concatenate([np.asarray(part, np.int64) for part in parts]),
        positions=np.concatenate([np.arange(length, dtype=np.int64) for length in lengths]),
        lengths=lengths,
        learn=learn,
    )


def balanced_parts(lengths: Sequence[int], num_parts: int) -> list[list[int]]:
    """Share out the sequences 0, 1, ... so that the parts have about equal tokens. Deterministic.

    The largest differencing method (Karmarkar and Karp 1982): what would make the largest difference is laid against
    what makes the next largest, the fullest part of the one to the emptiest of the other, until one split is left. The
    fullest and the emptiest part differ by no more than the longest sequence. Each part is in ascending order; with few
    sequences some are empty.
    """
    # Of each split (spread, place in the queue, loads, parts); only parts with anything in them, the fullest first.
    splits = [
        (-int(length) if num_parts > 1 else 0, index, [int(length)], [[index]]) for index, length in enumerate(lengths)
    ]
    heapq.heapify(splits)
    for index in range(len(lengths), 2 * len(lengths) - 1):
        _, _, loads, parts = heapq.heappop(splits)
        _, _, others, theirs = heapq.heappop(splits)
        heapq.heappush(splits, _laid_together(index, loads, parts, others, theirs, num_parts))
    parts = splits[0][3] if splits else []
    return [sorted(part) for part in parts] + [[] for _ in range(num_parts - len(parts))]


def _laid_together(
    index: int, loads: list[int], parts: list[list[int]], others: list[int], theirs: list[list[int]], num_parts: int
) -> tuple[int, int, list[int], list[list[int]]]:
    """One split of two: what is fullest in the second goes where the first is emptiest."""
    apart = num_parts - len(loads)  # empty parts of the first take the fullest of the second
    pairs = list(zip(loads + others[:apart], parts + theirs[:apart], strict=True))
    for place, (load, part) in enumerate(zip(others[apart:], theirs[apart:], strict=True)):
        before = len(loads) - 1 - place
        pairs[before] = (pairs[before][0] + load, pairs[before][1] + part)
    pairs.sort(key=lambda pair: (-pair[0], min(pair[1])))
    loads, parts = [load for load, _ in pairs], [part for _, part in pairs]
    emptiest = loads[-1] if len(loads) == num_parts else 0
    return emptiest - loads[0], index, loads, parts


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Split the sequences 0, 1, ... into balanced batches of at most `max_tokens` tokens; a longer one is alone.

    As many batches as the tokens need, or a few more where the lengths do not fit; none for no sequences.
    """
    needed = -(-sum(int(length) for length in lengths) // max_tokens)
    for count in range(needed, len(lengths) + 1):
        parts = balanced_parts(lengths, count)
        if all(sum(int(lengths[index]) for index in part) <= max_tokens or len(part) == 1 for part in parts):
            return [part for part in parts if part]
    return [[index] for index in range(len(lengths))]
