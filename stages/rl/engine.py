"""The rollout engine beside the learner: how it gets the policy's weights."""

from pathlib import Path

from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerFast

from stages.rl.config import StageConfig
from stages.rollout.config import EngineConfig
from stages.rollout.engine import Engine
from stages.rollout.torch.engine import TorchEngine, unsharded_copy
from stages.trainer.learner import Learner


def make_engine(config: StageConfig, learner: Learner, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Engine:
    """The engine that the config names; `refresh` gives it weights. All ranks call it together.

    Raises ValueError when it is vLLM, and that is not installed.
    """
    if config.engine.name == "torch":
        return torch_engine(learner, tokenizer, config.engine, alternate=config.rl.mode == "colocated")
    from stages.rollout.vllm.make import make_vllm

    slots, model = config.rl.sampling.slots, learner.policy.model.config
    return make_vllm(config.engine, model, tokenizer, slots, learner.job, folder)


def torch_engine(
    learner: Learner, tokenizer: PreTrainedTokenizerFast, engine: EngineConfig, *, alternate: bool = False
) -> TorchEngine:
    """An engine on the policy's own module, or, where that is in shards, on a copy that `refresh` fills.

    With `alternate` that copy has no memory while the engine sleeps.
    """
    model = learner.policy.model
    first = next(model.parameters())
    in_shards = isinstance(first, DTensor)
    model = unsharded_copy(model, first.device) if in_shards else model
    assert isinstance(tokenizer.eos_token_id, int), "load_tokenizer has checked it"
    return TorchEngine(
        model,
        tokenizer.eos_token_id,
        tokenizer.all_special_ids,
        tokenizer=tokenizer,
        memory_share=engine.memory_share,
        compiling=learner.job.slow if engine.compile else None,
        sleeps_without_weights=alternate and in_shards,
    )


def refresh(engine: Engine, learner: Learner, version: int) -> None:
    """Give the engine the policy's weights of now, which are those of `version`. All ranks call it together."""
    engine.update(None if is_shared(engine, learner) else learner.full_weights(), version)


def is_shared(engine: Engine, learner: Learner) -> bool:
    """Whether the engine generates with the policy's own module, so that it has no weights of its own."""
    return isinstance(engine, TorchEngine) and engine.model is learner.policy.model
