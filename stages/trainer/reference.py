"""The reference: the weights that a stage began with, frozen, in shards like the policy that moves away from them."""

from pathlib import Path

import torch

from data.job import Job
from stages.trainer.device import device_of
from stages.trainer.policy import Policy, load_policy
from stages.trainer.shards import shard


def load_reference(folder: Path, job: Job) -> Policy:
    """The policy of the Hugging Face `folder`, without gradients, optimizer or value head. All ranks call it together.

    Cards hold it in bfloat16, in which they compute anyway; the CPU in float32.
    """
    policy = load_policy(folder, seed=0).requires_grad_(False)
    if device_of(job).type == "cuda":
        # The parameters alone: the buffers of the rotary embedding need their precision.
        for parameter in policy.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    shard(policy, job)
    return policy
