"""The rollout engine beside the learner: how it gets the policy's weights, and the check that it has them."""

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerFast

from data.packing import pack_masked
from data.trajectories import Trajectories
from stages.rollout.parity import LIMIT_FP32, LIMIT_HALF, check_parity
from stages.rollout.torch.engine import TorchEngine, unsharded_copy
from stages.trainer.learner import Learner
from stages.trainer.policy import Policy

NUM_COMPARED = 8
"""Samples of each rank that are compared: a wrong weight, position or temperature shows in any of them."""


def make_engine(learner: Learner, tokenizer: PreTrainedTokenizerFast) -> TorchEngine:
    """An engine on the policy's own module, or, where that is in shards, on a copy that `refresh` fills."""
    model = learner.policy.model
    first = next(model.parameters())
    model = unsharded_copy(model, first.device) if isinstance(first, DTensor) else model
    assert isinstance(tokenizer.eos_token_id, int), "load_tokenizer has checked it"
    return TorchEngine(model, tokenizer.eos_token_id, tokenizer.all_special_ids)


def refresh(engine: TorchEngine, learner: Learner, version: int) -> None:
    """Give the engine the policy's weights of now, which are those of `version`. All ranks call it together."""
    engine.update(None if engine.model is learner.policy.model else learner.full_weights(), version)


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
