"""What old samples do to a policy on the default task, with real engine and learner."""

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.staleness import CORRECTED, end

CURVES = """
import json
import torch
from benchmarks.staleness import CORRECTED, curve
torch.set_num_threads(1)
print(json.dumps({name: [float(one) for one in curve(name, steps=30)] for name in ("uncorrected", *CORRECTED)}))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_uncorrected_updates_diverge_at_staleness_4_and_corrected_ones_do_not() -> None:
    """The first run on a machine makes the fine-tuned model, which takes minutes."""
    done = subprocess.run([sys.executable, "-c", CURVES], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    curves = json.loads(done.stdout.splitlines()[-1])
    uncorrected = curves["uncorrected"]
    assert end(uncorrected) < 0.5 * np.mean(uncorrected[:3])
    for name in CORRECTED:
        corrected = curves[name]
        assert end(corrected) > 0.9 * np.mean(corrected[:3]), name
        assert end(corrected) > 2 * end(uncorrected), name
