"""The learner: a policy in shards over the ranks (FSDP2), its optimizer, and their checkpoints."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerFast

from checkpoints import sharded
from data.job import Job
from stages.trainer.config import OptimizerConfig
from stages.trainer.device import use_cores
from stages.trainer.export import write_model
from stages.trainer.policy import Policy
from stages.trainer.schedule import schedule
from stages.trainer.shards import reshard, shard


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
        shard(policy, job)
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

    def weights(self) -> dict[str, Tensor]:
        """The transformers model's weights by their Hugging Face names, tied ones once; in shards where it is."""
        reshard(self.policy)
        parameters = dict(self.policy.model.named_parameters())
        tied = {name for name, _ in self.policy.model.named_parameters(remove_duplicate=False)} - parameters.keys()
        return {name: tensor.detach() for name, tensor in self.policy.model.state_dict().items() if name not in tied}

    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The same, whole, one at a time."""
        for name, tensor in self.weights().items():
            yield name, _full(tensor)

    def export(self, tokenizer: PreTrainedTokenizerFast, folder: Path) -> list[Path]:
        """Write the transformers model (without a value head) as a Hugging Face folder; see `export.write_model`."""
        with self.job.slow("export of the model"):
            return write_model(self.policy.model, self.full_weights(), tokenizer, folder)

    def _tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds, by name; loading fills these in place."""
        reshard(self.policy)
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.policy.named_parameters():
            tensors[f"policy.{name}"] = parameter
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{name}.{key}"] = value
        return tensors

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
