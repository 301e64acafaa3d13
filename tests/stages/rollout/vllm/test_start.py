"""A vLLM that starts, fails to start, or ends leaves the process that it is in as it was."""

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config

from data.job import Job
from stages.rollout.vllm.engine import VllmEngine
from stages.trainer.device import distributed

Make = Callable[..., PreTrainedModel]


def test_start_failure_and_end_leave_the_callers_group_environment_and_random_numbers(
    make_model: Make, tokenizer: PreTrainedTokenizerFast
) -> None:
    config = make_model(0).config
    sizes: dict[str, Any] = config.to_dict() | {
        "num_hidden_layers": 64,
        "layer_types": None,
        "max_position_embeddings": 200_000,
    }
    endless = Qwen3Config(**sizes)  # no room for the keys and values of one sequence
    environment = {"RANK", "LOCAL_RANK"} & os.environ.keys()
    with distributed(Job()):
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(5)
        with pytest.raises(ValueError, match="max seq len"):  # vLLM's own words, after it has made its groups
            VllmEngine(endless, tokenizer, slots=1)
        VllmEngine(config, tokenizer, slots=1).close()
        drawn = random.random(), np.random.random(), torch.rand(1).item()
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(5)
        assert drawn == (random.random(), np.random.random(), torch.rand(1).item())
        assert {"RANK", "LOCAL_RANK"} & os.environ.keys() == environment
        dist.barrier()
    VllmEngine(config, tokenizer, slots=1).close()
    assert not dist.is_initialized(), "a group of vLLM's own ends with it"
