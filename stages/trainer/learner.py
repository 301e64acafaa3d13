"""The learner: a policy in shards over the ranks (FSDP2), its optimizer, and their checkpoints."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerFast
from transformers.modeling_layers import GradientCheckpointingLayer

from checkpoints import sharded
from data.job import Job, check_shards
from stages.trainer.config import OptimizerConfig
from stages.trainer.device import device_of, use_cores
from stages.trainer.export import write_model
from stages.trainer.policy import Policy
from stages.trainer.schedule import schedule


class Learner:
    """Trains a policy: `accumulate` the losses of a step, then `step`. All methods are called by all ranks."""

    def __init__(
        self,
        policy: Policy,
        optimizer: OptimizerConfig,
        learning_rate: float,
        total_steps: int,
        job: Job,
        activation_checkpointing: bool = False,
        keep: int = 2,
    ) -> None:
        self.policy = policy
        self.config = optimizer
        self.peak_learning_rate = learning_rate
        self.total_steps = total_steps
        self.job, self.world_size = job, job.world_size
        self.keep = keep
        self.steps_done = 0
        use_cores(job, policy)
        if activation_checkpointing:
            policy.train()  # transformers recomputes only then; a policy has no dropout that this could wake
            policy.model.gradient_checkpointing_enable({"use_reentrant": False})
        _shard(policy, job)
        self.optimizer = _adamw(policy, optimizer)
        self._make_optimizer_state()

    @property
    def learning_rate(self) -> float:
        """Learning rate of the coming step."""
        return self.peak_learning_rate * schedule(self.config, self.steps_done, self.total_steps)

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of `loss`, a rank's part of a sum that is already divided by the count over all ranks."""
        (loss * self.world_size).backward()  # FSDP takes the mean over the ranks
        self.job.beat(f"a backward pass of optimizer step {self.steps_done + 1}")

    def step(self) -> float:
        """Clip the gradient, move the weights, forget the gradient. Returns its norm before clipping.

        Raises ArithmeticError, on all ranks and before any weight moves, when the norm is not finite.
        """
        clipped = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_gradient_norm)
        norm = float(_full(clipped))
        if not math.isfinite(norm):
            raise ArithmeticError(
                f"the norm of the gradient is {norm} in optimizer step {self.steps_done + 1}; no weight has moved, and "
                "the last checkpoint stands: try a lower learning rate, and see whether a loss divides by zero"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps_done += 1
        self.job.beat(f"optimizer step {self.steps_done}")
        return norm

    def save(self, folder: Path, step: int, state: dict[str, Any]) -> None:
        """Commit weights, optimizer and the JSON value `state` as `folder`/step-<step>."""
        state = {"caller": state, "optimizer_steps": self.steps_done}
        sharded.save(folder, step, self._tensors(), state, self.keep)

    def resume(self, folder: Path) -> tuple[int, dict[str, Any]] | None:
        """Continue from the newest checkpoint in `folder`: its step and state. None when there is none.

        Raises ValueError when a part of the checkpoint is missing.
        """
        path = sharded.latest(folder)
        if path is None:
            return None
        with self.job.slow(f"reading {path.name}"):
            step, state = sharded.load(path, self._tensors())
        self.steps_done = state["optimizer_steps"]
        return step, state["caller"]

    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The transformers model's weights, whole, by their Hugging Face names; tied ones once. One at a time."""
        self._reshard()
        parameters = dict(self.policy.model.named_parameters())
        tied = {name for name, _ in self.policy.model.named_parameters(remove_duplicate=False)} - parameters.keys()
        for name, tensor in self.policy.model.state_dict().items():
            if name not in tied:
                yield name, _full(tensor.detach())

    def export(self, tokenizer: PreTrainedTokenizerFast, folder: Path) -> list[Path]:
        """Write the transformers model (without a value head) as a Hugging Face folder; see `export.write_model`."""
        with self.job.slow("export of the model"):
            return write_model(self.policy.model, self.full_weights(), tokenizer, folder)

    def _tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds, by name; loading fills these in place."""
        self._reshard()
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.policy.named_parameters():
            tensors[f"policy.{name}"] = parameter
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{name}.{key}"] = value
        return tensors

    def _reshard(self) -> None:
        """Put the root's weights back into shards.

        After a pass without a backward they are still gathered: whole, in the precision of the computation, and not
        the tensors that the optimizer knows.
        """
        if isinstance(self.policy, FSDPModule):
            self.policy.reshard()

    def _make_optimizer_state(self) -> None:
        """Let the optimizer make its state, as it is before the first step.

        AdamW would make it at a weight's first gradient, which in reinforcement learning may come after the first
        checkpoint: a step in which all rewards are equal has none.
        """
        for parameter in self.policy.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self.optimizer.step()
        self.optimizer.zero_grad()
        for state in self.optimizer.state.values():
            state["step"].zero_()


def _shard(policy: Policy, job: Job) -> None:
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


def _mesh(job: Job, device: torch.device) -> DeviceMesh:
    """All ranks in one group of shards; or groups of consecutive ranks (HSDP), which add up their gradients."""
    size = job.shard_ranks or job.world_size
    check_shards(size, job.world_size, "slurm.<stage>.shard_ranks")
    if size == job.world_size:
        return init_device_mesh(device.type, (size,))
    return init_device_mesh(device.type, (job.world_size // size, size), mesh_dim_names=("replicate", "shard"))


def _adamw(policy: Policy, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW on all weights; norms and biases, which have one dimension, do not decay."""
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=config.betas, fused=True)


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
