"""New weights for a vLLM model in place."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel


def skeleton(config: PreTrainedConfig) -> PreTrainedModel:
    """A model of `config` without memory for its weights: it tells their names, tied ones once, and their shapes."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def reload(worker: Any, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Give `worker`, which is vLLM's, new weights. Runs inside vLLM."""
    worker.reload_weights(weights_iterator=weights)
    repack_head(worker.get_model())


def repack_head(model: Any) -> None:
    """Let a tied head see the new embeddings.

    vLLM's CPU build keeps a packed copy of each matrix for its kernels. Reloading packs what was loaded again, but a
    tied head is never loaded: its copy would stay that of the old weights, without any error.
    """
    head: Any = getattr(model, "lm_head", None)
    if hasattr(head, "cpu_linear"):
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
