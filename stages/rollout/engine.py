"""The torch rollout engine: transformers' own model, a key-value cache in slots, continuous refill.

It knows token ids only: no text, no rewards, no environment.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from stages.rollout.config import SamplingConfig
from stages.rollout.generation import Generation
from stages.rollout.sampling import Sampler
from stages.trainer import attention

REFILL_SHARE = 1 / 8
"""Free slots are refilled when at least this share of them is free: a prefill costs a forward pass of its own."""
COMPACT_SHARE = 0.9
"""With nothing left to refill, ended slots are given up once no more than this share is alive."""
STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 8}
"""Decode steps before the host looks at which sequences have ended: a look at a card stalls it."""


@dataclass(frozen=True)
class Request:
    """A prompt to complete."""

    prompt: list[int]
    seed: int
    """Decides every random number of this completion; not negative."""
    max_new_tokens: int | None = None
    """A limit for this request; None takes the sampling's."""


@dataclass(frozen=True)
class Completion:
    """What the policy answered."""

    tokens: list[int]
    """With the end token where it was emitted."""
    logprobs: npt.NDArray[np.float32]
    """[tokens], in nats, under the tempered distribution (greedy: the untempered)."""
    finished: bool
    """Whether the end token was emitted; false where the length ran out."""


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
        self._ordinary = torch.tensor(sorted(set(range(model.config.vocab_size)) - {eos, *special}))

    def update(self, weights: Iterable[tuple[str, Tensor]] | None, version: int) -> None:
        """Take the policy's weights of `version`; None when the model is the policy's own.

        Raises ValueError when `weights` lacks a parameter, or has one of another name or shape.
        """
        if weights is not None:
            _copy_weights(self.model, weights)
        self.version = version

    @torch.inference_mode()
    def generate(
        self,
        requests: Sequence[Request],
        sampling: SamplingConfig,
        *,
        greedy: bool = False,
        noise: float = 0.0,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Complete all requests, in their order. `on_progress` is told how many have ended.

        `greedy` overrides the temperature; with chance `noise` a token is replaced by a random ordinary one.
        Raises ValueError for a prompt that is empty or leaves no room in the model's context.
        """
        if not requests:
            return []
        limits = [self._limit(index, request, sampling) for index, request in enumerate(requests)]
        temperature = 0.0 if greedy else sampling.temperature
        device = next(self.model.parameters()).device
        generation = Generation(
            self.model,
            [request.prompt for request in requests],
            [request.seed for request in requests],
            limits,
            Sampler(temperature, noise, self._ordinary.to(device)),
            self.eos,
            slots=min(sampling.slots, len(requests)),
        )
        was_training = self.model.training
        self.model.eval()
        _play(generation, STEPS_BETWEEN_LOOKS[device.type], on_progress)
        self.model.train(was_training)
        return [Completion(t, logprobs, t[-1] == self.eos) for t, logprobs in generation.results()]

    def _limit(self, index: int, request: Request, sampling: SamplingConfig) -> int:
        positions = self.model.config.max_position_embeddings
        length = len(request.prompt)
        if not 0 < length < positions:
            raise ValueError(
                f"request {index}: the prompt has {length} tokens, but the model's context is {positions}; "
                "it must have at least one and leave room for an answer"
            )
        return min(request.max_new_tokens or sampling.max_new_tokens, positions - length)


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
