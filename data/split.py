"""Which split a row belongs to: decided by its prompt alone, never by its place or by the other rows."""

import numpy as np

SPLITS = ("train", "validation", "evaluation")


def assign_splits(keys: np.ndarray, validation_share: float, evaluation_share: float) -> np.ndarray:
    """Index into `SPLITS` of each row, int8 [n], from the keys of its id (`data.rows.id_keys`, uint64 [n]).

    The keys are a hash, spread evenly over 64 bits. The lowest share of that range is evaluation and the next
    validation, so a larger share only takes rows over, and a prompt changes sides for no other reason.
    """
    place = keys / 2.0**64
    splits = np.zeros(len(keys), dtype=np.int8)
    splits[place < evaluation_share + validation_share] = SPLITS.index("validation")
    splits[place < evaluation_share] = SPLITS.index("evaluation")
    return splits
