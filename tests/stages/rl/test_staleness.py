"""What old samples do to a policy on the default task, with real engine and learner."""

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.staleness import CORRECTED

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
    # Means of 15 steps: those of a few depend on how a processor rounds.
    begin, late = ({name: np.mean(curve[part]) for name, curve in curves.items()} for part in (slice(3), slice(15, 30)))
    assert late["uncorrected"] < 0.75 * begin["uncorrected"], curves
    for name in CORRECTED:
        assert late[name] > 0.8 * begin[name], (name, curves)
        assert late[name] > 1.5 * late["uncorrected"], (name, curves)
