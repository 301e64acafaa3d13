"""What differs for vLLM between CUDA, MetaX and CPUs. Everything else is the same, and in `engine`.

vLLM reads its environment variables when it is imported, so `prepare` comes first. A variable that the user has set
stays as it is. Known from vLLM's own code and, for MetaX, from that of the vendor's plugin; only the CPU was tried.
"""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from transformers import PreTrainedConfig

from stages.rollout.vllm.heads import check_cpu_heads

GIB = 2**30
LEAST = (0, 20)
"""Version of vLLM: the first of which the sources show every argument and method that is used here."""
CPU_BLOCK = 32
"""Tokens of a block of keys and values on a CPU: kernels want multiples of 32, and only whole blocks are shared."""
CPU_CACHE = 4 * GIB
"""At most, for keys and values in a CPU's memory."""
ALL = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: weights are handed over as they are
    "VLLM_NO_USAGE_STATS": "1",  # it would send statistics to its makers
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
CPU = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the ranks of a node have their cores from Slurm
}


def prepare() -> None:
    """Set the environment of this process for vLLM. Raises ValueError when vLLM is not installed, or too old."""
    if find_spec("vllm") is None:
        raise ValueError(missing())
    for name, value in (ALL | ({} if torch.cuda.is_available() else CPU)).items():
        os.environ.setdefault(name, value)
    check_version(import_module("vllm").__version__)


def check_version(found: str) -> None:
    """Raise ValueError when vLLM `found` is too old; one that does not tell its version is believed."""
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers and tuple(map(int, numbers.groups())) < LEAST:
        least = ".".join(map(str, LEAST))
        raise ValueError(
            f"engine.name: vLLM here is {found}, and Qianka needs {least} or newer (on MetaX cards vLLM-metax {least}, "
            "which came with MACA 3.7.0; docs/engines.md); install a newer one, or take engine.name=torch"
        )


@contextmanager
def keeping_threads() -> Generator[None]:
    """`torch.set_num_threads` is as before after vLLM's start: its CPU worker makes it do nothing, for good."""
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)


def compile_parts(allowed: bool) -> None:
    """Whether vLLM may compile parts of its sampler: never on a CPU, where that takes up to 50 s and gains nothing."""
    from torch._dynamo import config as dynamo

    dynamo.disable = not allowed and not torch.cuda.is_available()


def missing() -> str:
    """What to do where there is no vLLM."""
    return (
        "engine.name: there is no vllm in this environment; on a machine without cards `pip install '.[vllm]'` (see "
        "docs/engines.md), on MetaX or NVIDIA cards the build that belongs to them, or take engine.name=torch"
    )


def is_metax() -> bool:
    """Whether torch is MetaX's build."""
    return "metax" in torch.__version__


def card() -> str:
    """Which card this process computes on, the same for no two cards of a node; empty on a CPU."""
    if not torch.cuda.is_available():
        return ""
    index = torch.cuda.current_device()
    properties: Any = torch.cuda.get_device_properties(index)
    return str(getattr(properties, "uuid", index))


def can_sleep() -> bool:
    """Whether vLLM can give a card's memory back; on a CPU it ignores the request."""
    return torch.cuda.is_available()


def arguments(model: PreTrainedConfig, slots: int, memory_share: float) -> dict[str, Any]:
    """The arguments of vLLM's engine that depend on the platform, for `slots` sequences of a model.

    Raises ValueError for a model that vLLM cannot run there.
    """
    if torch.cuda.is_available():
        return {
            "dtype": "bfloat16",
            "gpu_memory_utilization": memory_share,
            "enable_sleep_mode": True,
            # C500 hung in torch.cuda.Stream(); capturing graphs needs streams (docs/engines.md).
            "enforce_eager": is_metax(),
        }
    check_cpu_heads(_head_size(model))
    return {
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": CPU_BLOCK,
        # A request with a seed fails when its prompt is cut: a CPU generator cannot be set back.
        "enable_chunked_prefill": False,
        "kv_cache_memory_bytes": min(CPU_CACHE, 2 * slots * _bytes_of_sequence(model)),
    }


def _head_size(model: PreTrainedConfig) -> int:
    return getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads


def _bytes_of_sequence(model: PreTrainedConfig) -> int:
    """Keys and values of the longest sequence, in float32."""
    heads = getattr(model, "num_key_value_heads", model.num_attention_heads)
    return (model.max_position_embeddings + CPU_BLOCK) * 2 * model.num_hidden_layers * heads * _head_size(model) * 4
