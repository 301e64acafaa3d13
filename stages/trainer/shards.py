"""A policy in shards over the ranks (FSDP2)."""

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from data.job import Job, check_shards
from stages.trainer.device import device_of
from stages.trainer.policy import Policy


def shard(policy: Policy, job: Job) -> None:
    """Each decoder layer is a unit of FSDP; embeddings, final norm and heads, which may be tied, are one more.

    Every rank holds the whole model for the moment between loading and sharding. Raises ValueError when the shards
    of `job.shard_ranks` do not make whole copies.
    """
    device = device_of(job)
    policy.to(device)
    if job.world_size == 1 and device.type == "cpu":
        return
    mesh = _mesh(job, device)
    # Master weights, gradients' sums and optimizer stay float32; cards compute in bfloat16.
    compute = torch.bfloat16 if device.type == "cuda" else None
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for module in policy.modules():
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)


def reshard(policy: Policy) -> None:
    """Put the root's weights back into shards.

    After a pass without a backward they are still gathered: whole, in the precision of the computation, and not the
    tensors that the optimizer knows.
    """
    if isinstance(policy, FSDPModule):
        policy.reshard()


def _mesh(job: Job, device: torch.device) -> DeviceMesh:
    """All ranks in one group of shards; or groups of consecutive ranks (HSDP), which add up their gradients."""
    size = job.shard_ranks or job.world_size
    check_shards(size, job.world_size, "slurm.<stage>.shard_ranks")
    if size == job.world_size:
        return init_device_mesh(device.type, (size,))
    return init_device_mesh(device.type, (job.world_size // size, size), mesh_dim_names=("replicate", "shard"))
