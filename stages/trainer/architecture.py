"""A Qwen3 decoder with random weights, for runs that start from nothing."""

import torch
from torch import nn
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from data.tokenizer import SPECIAL
from stages.trainer.attention import NAME
from stages.trainer.config import ArchitectureConfig


def random_model(architecture: ArchitectureConfig, seed: int) -> PreTrainedModel:
    """A Qwen3ForCausalLM in float32 whose weights depend on `architecture` and `seed` alone."""
    pad, bos, eos = range(len(SPECIAL))
    config = Qwen3Config(
        vocab_size=len(SPECIAL) + len(architecture.alphabet),
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.num_layers,
        num_attention_heads=architecture.num_heads,
        num_key_value_heads=architecture.num_key_value_heads,
        head_dim=architecture.hidden_size // architecture.num_heads,
        max_position_embeddings=architecture.max_positions,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        pad_token_id=pad,
        bos_token_id=bos,
        eos_token_id=eos,
    )
    model = Qwen3ForCausalLM(config)
    model.set_attn_implementation(NAME)
    _draw_weights(model, architecture.num_layers, seed)
    return model.eval()


@torch.no_grad()
def _draw_weights(model: nn.Module, num_layers: int, seed: int) -> None:
    """Embeddings with deviation 0.02, matrices with that of LeCun et al. 1998, 1 / sqrt(inputs).

    The two matrices that write into the residual stream are divided by sqrt(2 * layers), as in GPT-2, so that its
    variance does not grow with depth.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            continue
        deviation = 0.02 if "embed_tokens" in name else weight.shape[1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            deviation /= (2 * num_layers) ** 0.5
        weight.normal_(0.0, deviation, generator=generator)
