"""A model of two layers whose logits are far apart, so that a wrong weight or position shows."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config

from data.tokenizer import character_tokenizer
from stages.rollout.engine import Completion, Request


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return character_tokenizer("0123456789:;>+-* abc")


@pytest.fixture(scope="module")
def make_model(tokenizer: PreTrainedTokenizerFast) -> Callable[..., PreTrainedModel]:
    """`make_model(seed, tied=True)`, transformers' own."""

    def make(seed: int, tied: bool = True) -> PreTrainedModel:
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            intermediate_size=64,
            max_position_embeddings=256,
            tie_word_embeddings=tied,
            initializer_range=0.2,
        )
        return AutoModelForCausalLM.from_config(config).eval()

    return make


@pytest.fixture(scope="module")
def gap() -> Callable[..., float]:
    """`gap(model, request, completion, temperature=1)`: the largest, in nats, to what transformers says."""
    return _gap


@torch.no_grad()
def _gap(model: PreTrainedModel, request: Request, completion: Completion, temperature: float = 1.0) -> float:
    tokens = torch.tensor([[*request.prompt, *completion.tokens]])
    logits = model(tokens).logits[0, len(request.prompt) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)[range(len(completion.tokens)), completion.tokens]
    return float(np.abs(logprobs.numpy() - completion.logprobs).max())
