import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.dedupe import NUM_PERMUTATIONS, RECALL, NearDuplicates, bands, first_occurrences, shingles, signatures

WORDS = ["thousand", "cards", "train", "one", "model", "and", "any", "of", "them", "may", "fail", "at", "night"]


def jaccard(a: str, b: str) -> float:
    return len(shingles(a) & shingles(b)) / len(shingles(a) | shingles(b))


def keep_new(texts: list[str], similarity: float) -> list[bool]:
    near = NearDuplicates(similarity)
    return [near.is_new(text, signature) for text, signature in zip(texts, signatures(texts), strict=True)]


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(2**64 - 3, 2**64 - 1), min_size=1, max_size=60))
def test_the_first_of_equal_keys_stays(keys):
    expected = [key not in keys[:place] for place, key in enumerate(keys)]
    assert first_occurrences(np.array(keys, dtype=np.uint64)).tolist() == expected


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(st.text("ab", max_size=12), min_size=1, max_size=12),
    similarity=st.sampled_from([0.3, 0.5, 0.8, 0.95]),
)
def test_nothing_is_dropped_that_is_not_similar_to_a_kept_text(texts, similarity):
    kept: list[str] = []
    for text, new in zip(texts, keep_new(texts, similarity), strict=True):
        if new:
            kept.append(text)
        else:
            assert any(jaccard(text, other) >= similarity for other in kept)


def test_an_edited_copy_of_a_long_text_is_dropped_and_an_unrelated_one_stays():
    rng = random.Random(1)
    long = [" ".join(rng.choice(WORDS) for _ in range(120)) for _ in range(30)]
    copies = [f"{text}." for text in long]
    assert all(jaccard(a, b) > 0.98 for a, b in zip(long, copies, strict=True))
    assert keep_new(long + copies, 0.95) == [True] * 30 + [False] * 30


def test_nearly_all_pairs_at_the_limit_are_found():
    rng = random.Random(2)
    alphabet = [chr(code) for code in range(0x4E00, 0x9000)]
    found = 0
    for _ in range(200):
        # 200 distinct shingles, of which the copy loses five at its end: similarity 0.975.
        text = "".join(rng.sample(alphabet, 204))
        found += keep_new([text, text[:-5]], 0.975) == [True, False]
    assert found >= 200 * (RECALL - 0.02)


@pytest.mark.parametrize("similarity", [0.01, 0.3, 0.5, 0.8, 0.95, 0.99, 0.9999])
def test_every_similarity_has_an_index_that_finds_its_pairs(similarity):
    count, rows = bands(similarity)
    assert count >= 2 and count * rows <= NUM_PERMUTATIONS
    assert 1 - (1 - similarity**rows) ** count >= RECALL or rows == 1
    assert keep_new(["the same text", "the same text"], similarity) == [True, False]


def test_a_signature_does_not_depend_on_the_texts_beside_it():
    together = signatures(["7+5*3-2:", "1+1:", ""])
    assert together.shape == (3, NUM_PERMUTATIONS)
    assert (together[1] == signatures(["1+1:"])[0]).all()
    assert signatures([]).shape == (0, NUM_PERMUTATIONS)
