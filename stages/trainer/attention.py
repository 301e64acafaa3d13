"""The attention function that Qianka gives to transformers' models: the caller brings a context that attends.

Training brings `PackedContext` (sequences side by side, attention inside each), generation brings a key-value cache
(`stages.rollout.torch.cache`). The models stay those of transformers, so every architecture there works.
"""

from typing import Any, Protocol, cast

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

NAME = "qianka"


class AttentionContext(Protocol):
    """Decides what each query sees."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend with `query` [batch, heads, tokens, head size] and `key`, `value` [batch, key-value heads, ...].

        Returns [batch, tokens, heads, head size].
        """
        ...


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    context: AttentionContext,
    **_: Any,
) -> tuple[Tensor, None]:
    assert attention_mask is None, "the context decides what is seen"
    return context.attend(cast(int, module.layer_idx), query, key, value, scaling), None


AttentionInterface.register(NAME, _attention)


def hidden_states(model: PreTrainedModel, tokens: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
    """Last hidden states [batch, tokens, width] of `tokens` and `positions` [batch, tokens] under `context`."""
    body = model.get_decoder()
    return body(input_ids=tokens, position_ids=positions, use_cache=False, context=context).last_hidden_state


def logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits [..., vocabulary] of last hidden states [..., width]."""
    head = model.get_output_embeddings()
    assert head is not None, "a causal language model has output embeddings"
    return head(hidden)
