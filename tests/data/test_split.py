import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from data.rows import id_keys, row_id
from data.split import SPLITS, assign_splits

PROMPTS = st.lists(st.text(max_size=10), min_size=1, max_size=40, unique=True)


def splits_of(prompts: list[str], validation: float = 0.2, evaluation: float = 0.3) -> dict[str, str]:
    keys = id_keys(pa.array([row_id(prompt) for prompt in prompts]))
    return {p: SPLITS[s] for p, s in zip(prompts, assign_splits(keys, validation, evaluation), strict=True)}


@given(PROMPTS, st.randoms())
def test_a_prompt_keeps_its_split_whatever_the_order_and_the_other_rows(prompts, rng):
    alone = {prompt: splits_of([prompt])[prompt] for prompt in prompts}
    shuffled = rng.sample(prompts, len(prompts))
    assert splits_of(shuffled) == alone
    assert splits_of(shuffled[: len(prompts) // 2 + 1]).items() <= alone.items()


@given(PROMPTS, st.floats(0, 0.4), st.floats(0, 0.4))
def test_a_larger_evaluation_share_only_takes_rows_over(prompts, one, other):
    small, large = (splits_of(prompts, 0.1, share) for share in sorted((one, other)))
    assert all(large[prompt] == "evaluation" for prompt in prompts if small[prompt] == "evaluation")


def test_the_shares_are_those_asked_for():
    splits = assign_splits(id_keys(pa.array([row_id(str(n)) for n in range(50_000)])), 0.02, 0.05)
    shares = np.bincount(splits, minlength=3) / 50_000
    assert np.allclose(shares, [0.93, 0.02, 0.05], atol=0.004)


def test_no_validation_share_gives_no_validation_rows():
    assert "validation" not in splits_of([str(n) for n in range(500)], 0, 0.5).values()
