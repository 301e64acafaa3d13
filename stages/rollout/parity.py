"""Does the rollout engine compute what the trainer computes? Checked on rollouts, not assumed."""

import numpy as np
import numpy.typing as npt

LIMIT_FP32 = 1e-4
LIMIT_HALF = 0.05
"""Largest difference of a token's log-probability in nats, for float32 and for 16-bit weights."""


class ParityError(RuntimeError):
    """The engine and the policy give the same token different log-probabilities."""


def check_parity(engine: npt.NDArray[np.float32], policy: npt.NDArray[np.float32], limit: float) -> float:
    """The largest difference between the log-probabilities of the same tokens [K]; ParityError above `limit`."""
    assert engine.shape == policy.shape, "log-probabilities of the same tokens"
    if not len(engine):
        return 0.0
    differences = np.abs(engine.astype(np.float64) - policy)
    worst = int(np.argmax(differences))
    # A comparison that NaN fails too.
    if not differences[worst] <= limit:
        raise ParityError(
            f"rollout engine and policy disagree by {differences[worst]:.2e} nats (limit {limit:.0e}) on token "
            f"{worst}: {engine[worst]:.6f} against {policy[worst]:.6f}. The engine does not have the policy's weights, "
            "or its attention, positions or temperature differ; training on these rollouts would be wrong"
        )
    return float(differences[worst])
