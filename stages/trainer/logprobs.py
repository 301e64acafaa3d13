"""Log-probabilities and entropies of tokens from the last hidden states, without the logits of all of them at once.

A token of a vocabulary of 152,000 has 0.6 MB of logits, more than the rest of the model keeps of it. So the head is
applied chunk by chunk; what the forward pass keeps is two numbers a token, and the backward pass makes each chunk's
logits again.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

LOGITS = 2**26
"""Logits that may exist at once: 256 MB in float32, and a few times that with what is made of them."""


class Distribution(NamedTuple):
    """Of K tokens."""

    logprobs: Tensor
    """[K] float32, log-probability of the token that was drawn."""
    entropy: Tensor | None
    """[K] float32, entropy of the distribution it was drawn from, in nats."""


def token_distribution(
    head: nn.Linear, hidden: Tensor, drawn: Tensor, *, temperature: float, entropy: bool, most: int = LOGITS
) -> Distribution:
    """What `head` says of the K tokens `drawn` [K], given the hidden states [K, width] before them.

    Logits are divided by `temperature`. At most `most` of them exist at once, and at least one token's.
    """
    rows = max(1, most // head.out_features)
    if len(drawn) <= rows:
        logarithms = (head(hidden).float() / temperature).log_softmax(-1)
        logprobs = -nn.functional.nll_loss(logarithms, drawn, reduction="none")  # not a view: FSDP warns of those
        return Distribution(logprobs, -(logarithms.exp() * logarithms).sum(-1) if entropy else None)
    return Distribution(*_Chunked.apply(hidden, head.weight, head.bias, drawn, temperature, entropy, rows))


class _Chunked(torch.autograd.Function):
    """With logits z = (h W' + b) / T and p = softmax(z): log p_drawn = z_drawn - logsumexp(z), H = -sum p log p.

    Their gradients by z are onehot(drawn) - p and -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        drawn: Tensor,
        temperature: float,
        entropy: bool,
        rows: int,
    ) -> tuple[Tensor, Tensor | None]:
        norms, logprobs = (hidden.new_empty(len(drawn), dtype=torch.float32) for _ in range(2))
        entropies = torch.empty_like(norms) if entropy else None
        for part in _parts(len(drawn), rows):
            logits = _logits(hidden[part], weight, bias, temperature)
            norms[part] = logits.logsumexp(-1)
            logprobs[part] = logits.gather(-1, drawn[part, None])[:, 0] - norms[part]
            if entropies is not None:
                logarithms = logits.sub_(norms[part, None])
                entropies[part] = -(logarithms.exp() * logarithms).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, drawn, norms, entropies)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        of_logprobs, of_entropy = grad_outputs
        hidden, weight, bias, drawn, norms, entropies = ctx.saved_tensors
        to_hidden = torch.empty_like(hidden)
        # Sums over the chunks are float32, also where each chunk computes in 16 bits.
        to_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        to_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for part in _parts(len(drawn), ctx.rows):
            logarithms = _logits(hidden[part], weight, bias, ctx.temperature).sub_(norms[part, None])
            gradient = _by_logits(
                logarithms,
                drawn[part],
                None if of_logprobs is None else of_logprobs[part],
                None if of_entropy is None else of_entropy[part],
                None if entropies is None else entropies[part],
            ).div_(ctx.temperature)
            if to_bias is not None:
                to_bias += gradient.sum(0)
            gradient = gradient.to(weight.dtype)
            torch.mm(gradient, weight, out=to_hidden[part])
            if to_weight is not None and to_weight.dtype == weight.dtype:
                to_weight.addmm_(gradient.T, hidden[part])
            elif to_weight is not None:
                to_weight += gradient.T @ hidden[part]
        sums = (None if total is None else total.to(weight.dtype) for total in (to_weight, to_bias))
        return to_hidden, *sums, None, None, None, None


def _parts(count: int, rows: int) -> list[slice]:
    return [slice(start, start + rows) for start in range(0, count, rows)]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    return nn.functional.linear(hidden, weight, bias).float().div_(temperature)


def _by_logits(
    logarithms: Tensor, drawn: Tensor, of_logprobs: Tensor | None, of_entropy: Tensor | None, entropy: Tensor | None
) -> Tensor:
    """The gradient by the tempered logits [rows, vocabulary], whose normalised form is `logarithms`; those are lost."""
    shares = logarithms.exp()
    gradient = torch.zeros_like(shares)
    if of_entropy is not None:
        assert entropy is not None
        gradient = logarithms.add_(entropy[:, None]).mul_(shares).mul_(-of_entropy[:, None])
    if of_logprobs is not None:
        gradient = gradient.sub_(shares.mul_(of_logprobs[:, None]))
        gradient.scatter_add_(1, drawn[:, None], of_logprobs[:, None])
    return gradient
