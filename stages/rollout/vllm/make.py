"""The vLLM engine of each rank of a job: its own, or a client of its node's server."""

from collections.abc import Sequence
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
    Raises ValueError when vLLM is missing, too old or cannot run the model, and when a server would leave cards idle.
    """
    platform.prepare()
    with job.slow("starting vLLM"):
        if engine.name == "vllm":
            return VllmEngine(model, tokenizer, slots=slots, memory_share=engine.memory_share)
        places: list[tuple[str, str]] = [("", "")] * job.world_size
        dist.all_gather_object(places, (job.node, platform.card()))
        check_cards(places)
        nodes = [node for node, _ in places]
        announced, log = (folder / "engine" / f"{job.node}.{suffix}" for suffix in ("json", "log"))
        process = None
        if nodes.index(job.node) == job.rank:
            announced.parent.mkdir(exist_ok=True)
            slots *= nodes.count(job.node)
            share, seconds = engine.memory_share, job.start_seconds
            process = Process(model, tokenizer, announced, log, slots=slots, memory_share=share, seconds=seconds)
        dist.barrier()
        return ServerEngine(announced, model.max_position_embeddings, log, process, seconds=job.start_seconds)


def check_cards(places: Sequence[tuple[str, str]]) -> None:
    """Raise ValueError when ranks of one node, of which `places` has node and card, have different cards.

    A node's server has one card: the others would stand still while it plays.
    """
    for node in sorted({node for node, _ in places}):
        cards = {card for each, card in places if each == node}
        if len(cards) > 1:
            raise ValueError(
                f"engine.name is vllm_server, whose server has one card, but the ranks of {node} have {len(cards)}; "
                "take engine.name=vllm, which plays on the card of each rank, or give a node one card"
            )
