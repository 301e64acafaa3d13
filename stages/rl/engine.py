"""The rollout engine beside the learner: how it gets the policy's weights."""

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from data.job import Job
from data.tokenizer import end_token
from stages.rl.config import StageConfig
from stages.rollout.config import EngineConfig
from stages.rollout.engine import Engine
from stages.rollout.torch.engine import TorchEngine, unsharded_copy
from stages.trainer.device import device_of, distributed, use_cores
from stages.trainer.learner import Learner
from stages.trainer.policy import load_policy


def make_engine(config: StageConfig, learner: Learner, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Engine:
    """The engine that the config names; `refresh` gives it weights. All ranks call it together.

    Raises ValueError when it is vLLM, and that is not installed.
    """
    if config.engine.name == "torch":
        return torch_engine(learner, tokenizer, config.engine, alternate=config.rl.mode == "colocated")
    from stages.rollout.vllm.make import make_vllm

    slots, model = config.rl.sampling.slots, learner.policy.model.config
    return make_vllm(config.engine, model, tokenizer, slots, learner.job, folder)


@contextmanager
def actors_engine(
    config: StageConfig, model: Path, tokenizer: PreTrainedTokenizerFast, job: Job, folder: Path
) -> Generator[Engine]:
    """The engine of an actor, which has no learner: of the model in the folder `model`, whose weights are replaced.

    It is closed with the block. Raises ValueError when it is vLLM, and that is not installed.
    """
    policy = load_policy(model, config.seed)
    if config.engine.name == "torch":
        device = device_of(job)
        # On a card the policy computes in 16 bits.
        loaded = policy.to(device, torch.float32 if device.type == "cpu" else torch.bfloat16).model
        loaded.eval().requires_grad_(False)
        use_cores(job, loaded)
        with closing(own_engine(loaded, tokenizer, config.engine, job)) as engine:
            yield engine
        return
    from stages.rollout.vllm.make import make_vllm

    slots = config.rl.sampling.slots
    alone = replace(job, rank=0, world_size=1, local_rank=job.local_rank)
    with (
        distributed(alone),  # until vLLM has ended its own groups
        closing(make_vllm(config.engine, policy.model.config, tokenizer, slots, alone, folder)) as engine,
    ):
        yield engine


def own_engine(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    engine: EngineConfig,
    job: Job,
    *,
    sleeps_without_weights: bool = False,
) -> TorchEngine:
    """Qianka's own engine on this module."""
    return TorchEngine(
        model,
        end_token(tokenizer),
        tokenizer.all_special_ids,
        tokenizer=tokenizer,
        memory_share=engine.memory_share,
        compiling=job.slow if engine.compile else None,
        sleeps_without_weights=sleeps_without_weights,
    )


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
    return own_engine(model, tokenizer, engine, learner.job, sleeps_without_weights=alternate and in_shards)


def refresh(engine: Engine, learner: Learner, version: int) -> None:
    """Give the engine the policy's weights of now, which are those of `version`. All ranks call it together."""
    engine.update(None if is_shared(engine, learner) else learner.full_weights(), version)


def is_shared(engine: Engine, learner: Learner) -> bool:
    """Whether the engine generates with the policy's own module, so that it has no weights of its own."""
    return isinstance(engine, TorchEngine) and engine.model is learner.policy.model
