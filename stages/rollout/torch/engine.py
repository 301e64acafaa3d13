"""The torch rollout engine: transformers' own model, a key-value cache in slots, continuous refill.

It knows token ids only: no text, no rewards, no environment.
"""

from collections.abc import Callable, Collection, Iterable

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Request
from stages.rollout.torch.generation import Generation
from stages.rollout.torch.sampling import Sampler
from stages.trainer import attention

REFILL_SHARE = 1 / 8
"""Free slots are refilled when at least this share of them is free: a prefill costs a forward pass of its own."""
COMPACT_SHARE = 0.9
"""With nothing left to refill, ended slots are given up once no more than this share is alive."""
STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 8}
"""Decode steps before the host looks at which sequences have ended: a look at a card stalls it."""


class TorchEngine:
    """Generates with a model that was loaded with `attn_implementation=stages.trainer.attention.NAME`.

    `model` is the policy's own module (then `update(None, version)` follows each optimizer step), or a copy that
    `update` fills. The same calls give the same bits on a CPU. Which slot, batch or rank plays a request does not
    change its random numbers, only the rounding of its matrix products.
    """

    def __init__(self, model: PreTrainedModel, eos: int, special: Collection[int] = ()) -> None:
        """`eos` ends a completion; noise never puts `eos` or `special` tokens in place."""
        implementation = getattr(model.config, "_attn_implementation", None)
        assert implementation == attention.NAME, f"the model attends by {implementation}"
        self.model, self.eos, self.version = model, eos, 0
        self.context: int = model.config.max_position_embeddings
        self._ordinary = torch.tensor(sorted(set(range(model.config.vocab_size)) - {eos, *special}))
        self._waiting: dict[int, Request] = {}

    def start(self, sampling: SamplingConfig, *, greedy: bool = False, noise: float = 0.0) -> None:
        """See `Engine`."""
        self._sampling, self._noise = sampling, noise
        self._temperature = 0.0 if greedy else sampling.temperature

    def add(self, key: int, request: Request) -> None:
        """See `Engine`."""
        self._limit(key, request)
        self._waiting[key] = request

    def update(self, weights: Iterable[tuple[str, Tensor]] | None, version: int) -> None:
        """Take the policy's weights of `version`; None when the model is the policy's own.

        Raises ValueError when `weights` lacks a parameter, or has one of another name or shape.
        """
        if weights is not None:
            _copy_weights(self.model, weights)
        self.version = version

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Completion]]:
        """See `Engine`."""
        keys, requests = list(self._waiting), list(self._waiting.values())
        self._waiting = {}
        if not requests:
            return []
        device = next(self.model.parameters()).device
        generation = Generation(
            self.model,
            [request.prompt for request in requests],
            [request.seed for request in requests],
            [self._limit(*pair) for pair in zip(keys, requests, strict=True)],
            Sampler(self._temperature, self._noise, self._ordinary.to(device)),
            self.eos,
            slots=min(self._sampling.slots, len(requests)),
        )
        was_training = self.model.training
        self.model.eval()
        _play(generation, STEPS_BETWEEN_LOOKS[device.type], None)
        self.model.train(was_training)
        return [(key, self._completion(*made)) for key, made in zip(keys, generation.results(), strict=True)]

    def cancel(self, keys: Iterable[int]) -> None:
        """See `Engine`."""

    def release(self, sessions: Iterable[int]) -> None:
        """See `Engine`."""

    def sleep(self) -> None:
        """See `Engine`; keys and values live only while something is in flight."""

    def wake(self) -> None:
        """See `Engine`."""

    def close(self) -> None:
        """See `Engine`."""

    def _completion(self, tokens: list[int], logprobs: np.ndarray) -> Completion:
        reason = "stop" if tokens[-1] == self.eos else "length"
        return Completion(tokens, logprobs, np.full(len(tokens), self.version, np.int32), reason)

    def _limit(self, key: int, request: Request) -> int:
        length = len(request.prompt)
        if not 0 < length < self.context:
            raise ValueError(
                f"request {key}: the prompt has {length} tokens, but the model's context is {self.context}; "
                "it must have at least one and leave room for an answer"
            )
        return min(request.max_new_tokens or self._sampling.max_new_tokens, self.context - length)


def _play(generation: Generation, num_steps: int, on_progress: Callable[[int], None] | None) -> None:
    """Refill, decode, compact, until every request has ended."""
    total, slots = len(generation.prompts), len(generation.alive)
    while True:
        free, alive, width = generation.look()
        if on_progress:
            on_progress(total - len(generation.waiting) - len(alive))
        if generation.waiting and (not alive or len(free) >= REFILL_SHARE * slots):
            generation.admit(free)
        elif not alive:
            return
        else:
            if not generation.waiting and len(alive) <= COMPACT_SHARE * (len(free) + len(alive)):
                generation.compact(alive)
            for step in range(num_steps):
                generation.decode(width + step)


def unsharded_copy(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """A model of the same config with weights of its own, for an engine beside a sharded policy.

    On a card it has 16-bit weights, since that is what the policy computes with there.
    """
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    copy = AutoModelForCausalLM.from_config(model.config, dtype=dtype, attn_implementation=attention.NAME)
    return copy.to(device).eval().requires_grad_(False)


def _copy_weights(model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]]) -> None:
    waiting = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in weights:
            if name not in waiting:
                raise ValueError(f"the policy's weight {name} is not in the engine's model, or came twice")
            if waiting[name].shape != tensor.shape:
                raise ValueError(f"{name}: the policy's weight is {tensor.shape}, the engine's {waiting[name].shape}")
            waiting.pop(name).copy_(tensor)
    if waiting:
        raise ValueError(f"the policy's weights lack {sorted(waiting)}")
