"""Starting and stopping vLLM's own engine in this process, beside a trainer that goes on."""

import copy
import gc
import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

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
    platform.compile_parts(False)
    with tempfile.TemporaryDirectory() as folder, platform.keeping_threads():
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

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
            **_processes(),
            **platform.arguments(config, slots, memory_share),
        )
        return LLMEngine.from_engine_args(arguments)


def stop(llm: Any, owns_processes: bool) -> None:
    """End `llm`. Its own shutdown and finalizer would also end torch's process group, perhaps the caller's."""
    from vllm.distributed import parallel_state

    groups: Any = parallel_state
    finalizer = getattr(llm.engine_core, "_finalizer", None)
    if finalizer is not None:
        finalizer.detach()
    llm.model_executor.shutdown()
    groups.destroy_model_parallel()
    if owns_processes:
        groups.destroy_distributed_environment()
    else:
        groups.get_world_group().destroy()
        groups._WORLD = None
    platform.compile_parts(True)
    gc.unfreeze()  # vLLM has frozen all objects that were there at its start
    gc.collect()


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


def _processes() -> dict[str, str]:
    if not dist.is_initialized():
        return {}
    card = torch.cuda.current_device() if torch.cuda.is_available() else 0
    os.environ |= {"RANK": str(dist.get_rank()), "LOCAL_RANK": str(card)}
    return {"distributed_executor_backend": "external_launcher"}
