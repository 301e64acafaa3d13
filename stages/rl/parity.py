"""The parity gate: the rollout engine computes what the policy computes, or the job stops."""

import torch

from data.packing import pack_masked
from data.trajectories import Trajectories
from stages.rollout.parity import LIMIT_FP32, LIMIT_HALF, check_parity
from stages.trainer.policy import Policy

NUM_COMPARED = 8
"""Samples of each rank that are compared: a wrong weight, position or temperature shows in any of them."""


@torch.no_grad()
def compare(policy: Policy, trajectories: Trajectories, temperature: float) -> float:
    """The largest difference, in nats, between the log-probability of a played token and the policy's own.

    Raises ParityError when it is too large. All ranks call it together.
    """
    compared = range(min(NUM_COMPARED, len(trajectories)))
    found = policy(pack_masked([trajectories.sequence(index) for index in compared]), temperature=temperature).logprobs
    played = trajectories.logprobs[trajectories.mask][: len(found)]
    # Cards compute in 16 bits, whose rounding depends on how the sequences lie in a batch.
    limit = LIMIT_FP32 if found.device.type == "cpu" else LIMIT_HALF
    return check_parity(played, found.float().cpu().numpy(), limit)
