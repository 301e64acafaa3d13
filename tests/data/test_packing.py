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
