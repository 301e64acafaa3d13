"""The rollout engine beside the learner: how it gets the policy's weights."""

from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerFast

from stages.rollout.torch.engine import TorchEngine, unsharded_copy
from stages.trainer.learner import Learner


def make_engine(learner: Learner, tokenizer: PreTrainedTokenizerFast) -> TorchEngine:
    """An engine on the policy's own module, or, where that is in shards, on a copy that `refresh` fills."""
    model = learner.policy.model
    first = next(model.parameters())
    model = unsharded_copy(model, first.device) if isinstance(first, DTensor) else model
    assert isinstance(tokenizer.eos_token_id, int), "load_tokenizer has checked it"
    return TorchEngine(model, tokenizer.eos_token_id, tokenizer.all_special_ids, tokenizer=tokenizer)


def refresh(engine: TorchEngine, learner: Learner, version: int) -> None:
    """Give the engine the policy's weights of now, which are those of `version`. All ranks call it together."""
    engine.update(None if engine.model is learner.policy.model else learner.full_weights(), version)
