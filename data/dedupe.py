"""Which rows say again what an earlier one said. The first one stays, in the order of the rows."""

from collections.abc import Hashable, Iterable

import numpy as np
from datasketch import MinHash, MinHashLSH

SHINGLE_CHARACTERS = 5
NUM_PERMUTATIONS = 128
SIGNATURE_BYTES = 4 * NUM_PERMUTATIONS
RECALL = 0.99
"""Share of the pairs at exactly the similarity limit that must be found; more similar ones are found more surely."""


def first_occurrences(keys: np.ndarray) -> np.ndarray:
    """Which of the keys (uint64 [n]) are the first of their value, bool [n].

    Takes about 40 bytes a row for a moment. Two different prompts share a 64-bit key with a chance of one in a million
    for ten million rows; one of them would be lost.
    """
    kept = np.zeros(len(keys), dtype=bool)
    kept[np.unique(keys, return_index=True)[1]] = True
    return kept


def shingles(text: str) -> set[bytes]:
    """All runs of `SHINGLE_CHARACTERS` characters; the whole text when it is shorter."""
    count = max(len(text) - SHINGLE_CHARACTERS + 1, 1)
    return {text[start : start + SHINGLE_CHARACTERS].encode() for start in range(count)}


def signatures(texts: Iterable[str]) -> np.ndarray:
    """MinHash signature of each text's shingles, uint32 [n, NUM_PERMUTATIONS] (Broder 1997)."""
    hashes = MinHash.generator((shingles(text) for text in texts), num_perm=NUM_PERMUTATIONS)
    return np.array([found.hashvalues for found in hashes], dtype=np.uint32).reshape(-1, NUM_PERMUTATIONS)


def bands(similarity: float) -> tuple[int, int]:
    """(Number of bands, rows of a band) of the index: the longest band that still finds `RECALL` of the pairs.

    A pair of Jaccard similarity s meets in one of b bands of r rows with the chance 1 - (1 - s^r)^b (Leskovec,
    Rajaraman and Ullman, Mining of Massive Datasets, 3.4).
    """
    for rows in range(NUM_PERMUTATIONS // 2, 1, -1):
        count = NUM_PERMUTATIONS // rows
        if 1 - (1 - similarity**rows) ** count >= RECALL:
            return count, rows
    return NUM_PERMUTATIONS, 1


class NearDuplicates:
    """Finds texts whose shingles have a Jaccard similarity of at least `similarity` with those of an earlier one.

    The index proposes, the texts themselves decide: nothing is dropped that is less similar. It stays in memory, with
    the texts, at some 4 KB a kept row: 10 million rows take 40 GB. Where that is too much, a similarity of 1 skips near
    duplicates.
    """

    def __init__(self, similarity: float) -> None:
        self.similarity = similarity
        self.kept: dict[Hashable, str] = {}
        self.index = MinHashLSH(num_perm=NUM_PERMUTATIONS, params=bands(similarity))
        # The index reads nothing of it but its values, so one object serves all.
        self.probe = MinHash(num_perm=NUM_PERMUTATIONS)

    def is_new(self, text: str, signature: np.ndarray) -> bool:
        """Whether the text is unlike all that were new before; if so, remember it."""
        self.probe.hashvalues = signature
        mine = shingles(text)
        if any(self.similar(mine, shingles(self.kept[key])) for key in self.index.query(self.probe)):
            return False
        self.index.insert(len(self.kept), self.probe, check_duplication=False)
        self.kept[len(self.kept)] = text
        return True

    def similar(self, first: set[bytes], second: set[bytes]) -> bool:
        """Whether the Jaccard similarity of two sets reaches the limit."""
        return len(first & second) >= self.similarity * len(first | second)
