"""Tiny random models, and what transformers itself says of them."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, Qwen3Config

from stages.trainer import attention

SHAPE: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="session")
def shape() -> dict[str, Any]:
    """Of all tiny models."""
    return SHAPE


@pytest.fixture(scope="session")
def tiny() -> Callable[..., PreTrainedModel]:
    """`tiny(config, seed)`: random weights, attending in Qianka's way."""

    def make(config: PreTrainedConfig | None = None, seed: int = 0) -> PreTrainedModel:
        torch.manual_seed(seed)
        config = Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True) if config is None else config
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=attention.NAME).eval()

    return make


def _reference(model: PreTrainedModel) -> PreTrainedModel:
    plain = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), attn_implementation="eager").eval()
    plain.load_state_dict(model.state_dict())
    return plain


@pytest.fixture(scope="session")
def reference() -> Callable[[PreTrainedModel], PreTrainedModel]:
    """`reference(model)`: the same weights, attending in transformers' way."""
    return _reference


@pytest.fixture(scope="session")
def logprobs_of() -> Callable[..., npt.NDArray[np.float32]]:
    """`logprobs_of(model, prompt, tokens, temperature)`: of each of `tokens`, by one plain forward pass."""

    @torch.no_grad()
    def compute(model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0) -> Any:
        logits = _reference(model)(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()

    return compute
