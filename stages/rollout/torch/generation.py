"""One call of the torch engine: slots that sequences occupy, refilled from the waiting requests as they fall free.

What a slot does is kept on the device; the host looks only now and then. A slot whose sequence has ended goes on
computing until the host looks, and what it writes goes to a row that nobody reads.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from stages.rollout.torch.cache import DecodeContext, PrefillContext, SlotCache
from stages.rollout.torch.sampling import Sampler, draw_uniforms
from stages.trainer.attention import hidden_states, logits

PREFILL_TOKENS = 16_384
"""Prompt tokens of one forward pass, with the padding to the longest prompt that attention needs."""


class Generation:
    """The state of one call, for requests given by prompts, seeds and limits (new tokens at most)."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        limits: Sequence[int],
        sampler: Sampler,
        eos: int,
        slots: int,
    ) -> None:
        """All requests wait, all slots are free."""
        self.model, self.prompts, self.seeds, self.limits = model, prompts, seeds, limits
        self.sampler, self.eos = sampler, eos
        self.waiting = deque(range(len(prompts)))
        like = next(model.parameters())
        self.device, count, most = like.device, len(prompts), max(limits)
        self.positions = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
        self.cache = SlotCache(model.config, slots, self.positions, like)
        # One row a request, and a last row for what ended sequences go on writing.
        self.tokens = self._zeros(count + 1, most)
        self.logprobs = self._zeros(count + 1, most, dtype=torch.float32)
        self.lengths = self._zeros(count + 1)
        # One entry a slot.
        self.request = self._zeros(slots)
        self.alive = self._zeros(slots, dtype=torch.bool)
        self.last = self._zeros(slots)
        self.position = self._zeros(slots)
        self.made = self._zeros(slots)
        self.limit = self._zeros(slots)
        self.draws = self._zeros(slots, most if sampler.needs_draws else 1, 3, dtype=torch.float64)

    def look(self) -> tuple[list[int], list[int], int]:
        """Slots that are free, slots that are alive, and the width of the next decode step."""
        alive, position = torch.stack([self.alive, self.position]).cpu().numpy()
        width = int((position * alive).max()) + 1
        return np.flatnonzero(alive == 0).tolist(), np.flatnonzero(alive).tolist(), width

    def admit(self, free: list[int]) -> None:
        """Start waiting requests in `free` slots, in order, as many as fit one forward pass."""
        distinct: dict[tuple[int, ...], int] = {}
        taken: list[int] = []
        longest = 0
        while self.waiting and len(taken) < len(free):
            prompt = tuple(self.prompts[self.waiting[0]])
            longest = max(longest, len(prompt))
            if taken and longest * (len(distinct) + (prompt not in distinct)) > PREFILL_TOKENS:
                break
            distinct.setdefault(prompt, len(distinct))
            taken.append(self.waiting.popleft())
        slots = self._tensor(free[: len(taken)])
        self.request[slots] = self._tensor(taken)
        self.position[slots] = self._tensor([len(self.prompts[request]) for request in taken])
        self.limit[slots] = self._tensor([self.limits[request] for request in taken])
        self.made[slots] = 0
        self.alive[slots] = True
        if self.sampler.needs_draws:
            uniforms = draw_uniforms([self.seeds[request] for request in taken], self.draws.shape[1])
            self.draws[slots] = uniforms.to(self.device)
        prompt_of = self._tensor([distinct[tuple(self.prompts[request])] for request in taken])
        self._choose(slots, self._prefill(list(distinct), slots, prompt_of)[prompt_of])

    def decode(self, width: int) -> None:
        """One more token in every slot. No sequence that is alive is longer than `width` with it."""
        context = DecodeContext.of(self.cache, self.position, min(width, self.positions))
        hidden = hidden_states(self.model, self.last[:, None], self.position[:, None], context)[:, 0]
        self.position = self.position + self.alive
        self._choose(context.slots, hidden)

    def compact(self, slots: list[int]) -> None:
        """Give up all slots but `slots`."""
        keep = self._tensor(slots)
        self.cache.keep(keep)
        for name in ("request", "alive", "last", "position", "made", "limit", "draws"):
            setattr(self, name, getattr(self, name)[keep])

    def results(self) -> list[tuple[list[int], np.ndarray]]:
        """Tokens and log-probabilities of each request, in order."""
        tokens, logprobs, lengths = (t[:-1].cpu().numpy() for t in (self.tokens, self.logprobs, self.lengths))
        return [(row[:n].tolist(), p[:n].copy()) for row, p, n in zip(tokens, logprobs, lengths, strict=True)]

    def _prefill(self, prompts: list[tuple[int, ...]], slots: Tensor, prompt_of: Tensor) -> Tensor:
        """Last hidden states [prompts, width] of distinct `prompts`; fills the cache of `slots`."""
        lengths = [len(prompt) for prompt in prompts]
        tokens = self._tensor([token for prompt in prompts for token in prompt])
        positions = self._tensor(np.concatenate([np.arange(length) for length in lengths]))
        context = PrefillContext.of(self.cache, lengths, slots, prompt_of)
        hidden = hidden_states(self.model, tokens[None], positions[None], context)[0]
        return hidden[self._tensor(np.cumsum(lengths) - 1)]

    def _choose(self, slots: Tensor, hidden: Tensor) -> None:
        """The next token of `slots` from their hidden states: recorded, and fed to the next decode step."""
        made, alive = self.made[slots], self.alive[slots]
        draws = self.draws[slots, made.clamp(max=self.draws.shape[1] - 1)]
        tokens, logprobs = self.sampler.choose(logits(self.model, hidden), draws)
        rows = torch.where(alive, self.request[slots], len(self.tokens) - 1)
        self.tokens[rows, made] = tokens
        self.logprobs[rows, made] = logprobs
        self.lengths[rows] = made + 1
        self.last[slots] = tokens
        goes_on = alive & (tokens != self.eos) & (made + 1 < self.limit[slots])
        self.alive[slots] = goes_on
        self.made[slots] = made + goes_on

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _tensor(self, values: Sequence[int] | np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int64, device=self.device)
