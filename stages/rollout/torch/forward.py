"""The model as the sampler calls it: transformers' modules, or for common decoders the same layers in few operations.

A decode step is many small operations, so what transformers' modules do around each costs as much as the matrix
products. Weights are always those of the model's own modules.
"""

import copy
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu
from transformers import PreTrainedModel

from stages.rollout.torch.cache import Padding, PrefillContext, SlotCache
from stages.rollout.torch.products import Products
from stages.trainer.attention import AttentionContext, hidden_states, logits

LOGGER = logging.getLogger(__name__)

LEAN = {"llama", "qwen2", "qwen3"}
"""Model types whose layers are those of `_layer`."""
PROBE = 16
"""Tokens of the sequence on which the lean layers must agree with transformers' own ..."""
LIMIT = 1e-3
"""... so far, in the normed hidden states, whose entries are about 1."""

HiddenStates = Callable[[Tensor, Tensor, AttentionContext], Tensor]


class Forward(NamedTuple):
    """What the sampler needs of a model."""

    hidden_states: HiddenStates
    """Of tokens, positions [batch, tokens] and a context: last hidden states [batch, tokens, width]."""
    logits: Callable[[Tensor], Tensor]
    """Of hidden states."""
    lean: bool
    decode: HiddenStates
    """`hidden_states` of one new token in each row: the same, or compiled."""
    refresh: Callable[[], None]
    """To be called when the weights may have changed."""


def forward_of(model: PreTrainedModel) -> Forward:
    """The lean layers where they are `model`'s, else transformers' modules."""
    body, head, products = model.get_decoder(), model.get_output_embeddings(), Products()

    def modules(tokens: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        return hidden_states(model, tokens, positions, context)

    def layers(tokens: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        return _hidden_states(products, body, tokens, positions, context)

    plain = Forward(modules, lambda hidden: logits(model, hidden), lean=False, decode=modules, refresh=lambda: None)
    if getattr(model.config, "model_type", "") not in LEAN:
        return plain
    assert head is not None, "a causal language model has output embeddings"
    lean = Forward(layers, lambda hidden: products(hidden, head), lean=True, decode=layers, refresh=products.forget)
    if _agree(body):
        return lean
    LOGGER.warning("this transformers computes %s otherwise: its own, slower layers generate", model.config.model_type)
    return plain


def _hidden_states(
    products: Products, body: Any, tokens: Tensor, positions: Tensor, context: AttentionContext
) -> Tensor:
    hidden = body.embed_tokens(tokens)
    rotation = body.rotary_emb(hidden, positions)
    for index, layer in enumerate(body.layers):
        hidden = _layer(index, layer, products, hidden, rotation, context)
    return _norm(hidden, body.norm)


def _layer(
    index: int,
    layer: Any,
    products: Products,
    hidden: Tensor,
    rotation: tuple[Tensor, Tensor],
    context: AttentionContext,
) -> Tensor:
    attention, mlp = layer.self_attn, layer.mlp
    inside = _norm(hidden, layer.input_layernorm)
    query, key, value = (
        products(inside, projection).unflatten(-1, (-1, attention.head_dim))
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):
        query, key = _norm(query, attention.q_norm), _norm(key, attention.k_norm)
    query, key = _rotate(query.transpose(1, 2), rotation), _rotate(key.transpose(1, 2), rotation)
    seen = context.attend(index, query, key, value.transpose(1, 2), attention.scaling)
    hidden = hidden + products(seen.flatten(-2), attention.o_proj)
    inside = _norm(hidden, layer.post_attention_layernorm)
    return hidden + products(silu(products(inside, mlp.gate_proj)) * products(inside, mlp.up_proj), mlp.down_proj)


def _norm(hidden: Tensor, norm: Any) -> Tensor:
    return rms_norm(hidden, (hidden.shape[-1],), norm.weight, norm.variance_epsilon)


def _rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions (Su et al. 2021, equation 34), a head's halves paired; [batch, heads, tokens, size]."""
    cos, sin = (part.unsqueeze(1) for part in rotation)
    first, second = heads.chunk(2, -1)
    return heads * cos + torch.cat((-second, first), -1) * sin


@torch.inference_mode()
def _agree(body: Any) -> bool:
    """Whether the lean layers compute what `body` does, shown on its first layer in float32.

    There only a formula can differ. In bfloat16, through all layers, rounding alone may move the log-probabilities of
    tokens that a model has hardly seen by several nats, those of transformers' layers no less than those of these.
    """
    probe = copy.deepcopy(body, {id(layer): None for layer in list(body.layers)[1:]})  # without the layers behind it
    probe.layers = probe.layers[:1]
    probe = probe.float().eval()
    weight = next(probe.parameters())
    numbers = torch.arange(PROBE, device=weight.device)[None]
    tokens, places = numbers % probe.config.vocab_size, numbers % probe.config.max_position_embeddings
    rows = tokens.new_zeros(1)
    found: list[Tensor] = []
    for forward in (hidden_states, partial(_hidden_states, Products())):
        context = PrefillContext(
            SlotCache(probe.config, 1, PROBE, weight), Padding.of([PROBE], weight.device), rows, rows
        )
        found.append(forward(probe, tokens, places, context))
    return torch.allclose(*found, rtol=LIMIT, atol=LIMIT)
