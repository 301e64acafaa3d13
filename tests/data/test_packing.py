import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packing import balanced_parts, micro_batches, pack

lengths_of = st.lists(st.integers(1, 60), max_size=40)
sequences_of = st.lists(
    st.tuples(st.lists(st.integers(0, 99), min_size=1, max_size=6), st.lists(st.integers(0, 99), max_size=6)),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=50)
@given(sequences_of)
def test_packing_keeps_every_token_in_its_place(sequences: list[tuple[list[int], list[int]]]) -> None:
    packed = pack(sequences)
    starts = np.cumsum(packed.lengths) - packed.lengths
    for (prompt, completion), start, length in zip(sequences, starts, packed.lengths, strict=True):
        here = slice(start, start + length)
        assert packed.tokens[here].tolist() == prompt + completion
        assert packed.positions[here].tolist() == list(range(length))
        assert packed.learn[here].tolist() == [False] * len(prompt) + [True] * len(completion)
    assert len(packed.tokens) == packed.lengths.sum()


def test_no_sequences_pack_to_a_token_from_which_nothing_is_learned() -> None:
    packed = pack([])
    assert (packed.tokens.tolist(), packed.lengths.tolist(), packed.learn.tolist()) == ([0], [1], [False])


@settings(deadline=None, max_examples=50)
@given(lengths_of, st.integers(1, 100))
def test_micro_batches_hold_every_sequence_once_and_keep_the_budget(lengths: list[int], max_tokens: int) -> None:
    batches = micro_batches(lengths, max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(batches)
    for batch in batches:
        assert sum(lengths[index] for index in batch) <= max_tokens or len(batch) == 1


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 20), max_size=40))
def test_micro_batches_are_no_more_than_needed_when_sequences_are_short(lengths: list[int]) -> None:
    assert len(micro_batches(lengths, 10_000)) == min(1, len(lengths))


@settings(deadline=None, max_examples=50)
@given(lengths_of, st.integers(1, 5))
def test_parts_hold_every_sequence_once_and_differ_by_less_than_one(lengths: list[int], num_parts: int) -> None:
    parts = balanced_parts(lengths, num_parts)
    assert len(parts) == num_parts
    assert sorted(index for part in parts for index in part) == list(range(len(lengths)))
    loads = [sum(lengths[index] for index in part) for part in parts]
    assert max(loads) - min(loads) <= max(lengths, default=0)


def test_karmarkar_and_karps_own_example_differs_by_two() -> None:
    parts = balanced_parts([8, 7, 6, 5, 4], 2)
    assert sorted(sum([8, 7, 6, 5, 4][index] for index in part) for part in parts) == [14, 16]


def longest_first(lengths: list[int], num_parts: int) -> int:
    """Tokens of the fullest part where each sequence, the longest first, goes to the emptiest part (Graham 1969)."""
    loads = [0] * num_parts
    for length in sorted(lengths, reverse=True):
        loads[loads.index(min(loads))] += length
    return max(loads)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.integers(1, 9))
def test_parts_are_seldom_worse_than_longest_first_and_never_by_much(lengths: list[int], num_parts: int) -> None:
    fullest = max(sum(lengths[index] for index in part) for part in balanced_parts(lengths, num_parts))
    least = max(max(lengths), -(-sum(lengths) // num_parts))
    assert fullest <= min(longest_first(lengths, num_parts) * 7 / 6, least + max(lengths))


def test_many_parts_are_better_balanced_than_longest_first() -> None:
    better = worse = 0
    for seed in range(40):
        lengths = np.random.default_rng(seed).integers(50, 400, 64).tolist()
        fullest = max(sum(lengths[index] for index in part) for part in balanced_parts(lengths, 8))
        first = longest_first(lengths, 8)
        better, worse = better + (fullest < first), worse + (fullest > first)
    assert better > 30 and worse < 5
