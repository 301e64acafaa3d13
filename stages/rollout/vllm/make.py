"""The vLLM engine of each rank of a job: its own, or a client of its node's server."""

from pathlib import Path

import torch.distributed as dist
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from data.job import Job
from stages.rollout.config import EngineConfig
from stages.rollout.vllm import platform
from stages.rollout.vllm.client import ServerEngine
from stages.rollout.vllm.engine import VllmEngine
from stages.rollout.vllm.launch import Process


def make_vllm(
    engine: EngineConfig,
    model: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerFast,
    slots: int,
    job: Job,
    folder: Path,
) -> VllmEngine | ServerEngine:
    """An engine without weights, for `slots` sequences of each rank. All ranks of the job call it together.

    The first rank of each node starts the node's server, which announces itself and writes its log in `folder`.
    Raises ValueError when vLLM is not installed.
    """
    platform.prepare()
    with job.slow("starting vLLM"):
        if engine.name == "vllm":
            return VllmEngine(model, tokenizer, slots=slots, memory_share=engine.memory_share)
        nodes = [""] * job.world_size
        dist.all_gather_object(nodes, job.node)
        announced, log = (folder / "engine" / f"{job.node}.{suffix}" for suffix in ("json", "log"))
        process = None
        if nodes.index(job.node) == job.rank:
            announced.parent.mkdir(exist_ok=True)
            slots *= nodes.count(job.node)
            share, seconds = engine.memory_share, job.start_seconds
            process = Process(model, tokenizer, announced, log, slots=slots, memory_share=share, seconds=seconds)
        dist.barrier()
        return ServerEngine(announced, model.max_position_embeddings, log, process)
