"""What old samples do to a policy on the default task, with real engine and learner."""

import numpy as np
import pytest
import torch

from benchmarks.staleness import CORRECTED, curve, end


@pytest.mark.slow
def test_uncorrected_updates_diverge_at_staleness_4_and_corrected_ones_do_not() -> None:
    """The first run on a machine makes the fine-tuned model, which takes minutes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        uncorrected = curve("uncorrected", steps=30)
        assert end(uncorrected) < 0.5 * np.mean(uncorrected[:3])
        for name in CORRECTED:
            corrected = curve(name, steps=30)
            assert end(corrected) > 0.9 * np.mean(corrected[:3]), name
            assert end(corrected) > 2 * end(uncorrected), name
    finally:
        torch.set_num_threads(threads)
