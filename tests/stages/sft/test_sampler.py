from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.sft.sampler import batch_rows


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 30), st.integers(1, 4))
def test_every_row_comes_once_an_epoch(num_rows: int, batch: int, epochs: int) -> None:
    samples = np.concatenate([batch_rows(3, num_rows, cursor, batch) for cursor in range(0, 200, batch)])
    for epoch in range(min(epochs, len(samples) // num_rows)):
        assert sorted(samples[epoch * num_rows : (epoch + 1) * num_rows]) == list(range(num_rows))


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 300), st.integers(1, 60), st.integers(0, 60))
def test_the_cursor_alone_decides_where_the_samples_go_on(num_rows: int, cursor: int, one: int, two: int) -> None:
    whole = batch_rows(3, num_rows, cursor, one + two)
    first = batch_rows(3, num_rows, cursor, one)
    second = batch_rows(3, num_rows, cursor + one, two) if two else np.empty(0, np.int64)
    assert np.array_equal(whole, np.concatenate([first, second]))


def test_each_epoch_and_each_seed_has_its_own_order() -> None:
    first, second = batch_rows(1, 100, 0, 100), batch_rows(1, 100, 100, 100)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, batch_rows(2, 100, 0, 100))
    assert Counter(first.tolist()) == Counter(second.tolist())
