"""Starting and stopping vLLM's own engine in this process, beside a trainer that goes on."""

import copy
import gc
import os
import random
import tempfile
from collections.abc import Collection, Generator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import PreTrainedConfig

from stages.rollout.vllm import platform


def start(config: PreTrainedConfig, architecture: str, slots: int, memory_share: float) -> Any:
    """An engine of vLLM for a model of `config` and of the class `architecture`, whose weights mean nothing yet.

    Where torch's process group is there already, all its ranks call this together, and each gets an engine of its own
    (vLLM makes groups of one rank out of it, as it does for the launchers that it calls external).
    """
    described = copy.deepcopy(config)
    described.architectures = [architecture]
    with tempfile.TemporaryDirectory() as folder, platform.keeping_threads(), _keeping_random_numbers(), _processes():
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        _keep_group(dist.is_initialized())
        platform.compile_parts(False)
        described.save_pretrained(Path(folder))
        arguments = EngineArgs(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            generation_config="vllm",
            max_model_len=config.max_position_embeddings,
            max_num_seqs=slots,
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            async_scheduling=False,  # no step may be under way while weights change
            disable_log_stats=True,
            seed=0,
            distributed_executor_backend="external_launcher" if dist.is_initialized() else None,
            **platform.arguments(config, slots, memory_share),
        )
        return LLMEngine.from_engine_args(arguments)


def stop(llm: Any) -> None:
    """End `llm`, and torch's process group only if there was none at its start."""
    from vllm.distributed import parallel_state

    llm.engine_core.shutdown()
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()
    platform.compile_parts(True)
    gc.unfreeze()  # vLLM has frozen all objects that were there at its start
    gc.collect()


def _keep_group(theirs: bool) -> None:
    """Let vLLM end torch's process group, at its stop or a start that failed, only if the group is not `theirs`."""
    from vllm.distributed import parallel_state

    groups: Any = parallel_state
    destroy = getattr(groups.destroy_distributed_environment, "__wrapped__", groups.destroy_distributed_environment)

    @wraps(destroy)
    def leave() -> None:
        if groups._WORLD:
            groups._WORLD.destroy()
        groups._WORLD = groups._NODE_COUNT = None

    groups.destroy_distributed_environment = leave if theirs else destroy


def delta_params(*, temperature: float, seed: int, max_tokens: int, ends: Collection[int], also: int | None) -> Any:
    """The parameters for vLLM of one request, whose outputs are to hold the new tokens only.

    Each token has its log-probability under the tempered distribution (temperature 0: the untempered), and so has the
    token `also`, whether it is sampled or not.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=max_tokens,
        stop_token_ids=sorted(token for token in ends if token >= 0),
        ignore_eos=True,  # vLLM's idea of it; ours is among `ends`
        logprobs=0 if also is None else 1,
        logprob_token_ids=None if also is None else [also],
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


@contextmanager
def _processes() -> Generator[None]:
    """What vLLM reads of its launcher, where there is a process group: for its start only, not for child processes."""
    ranks: dict[str, str] = {}
    if dist.is_initialized():
        card = torch.cuda.current_device() if torch.cuda.is_available() else 0
        ranks = {"RANK": str(dist.get_rank()), "LOCAL_RANK": str(card)}
    before = {name: os.environ.get(name) for name in ranks}
    os.environ |= ranks
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _keeping_random_numbers() -> Generator[None]:
    """The generators of the whole process, which vLLM's start seeds, are afterwards as before."""
    ours, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
        try:
            yield
        finally:
            random.setstate(ours)
            np.random.set_state(arrays)
