"""The sequences that are being generated, one row each, as they stand on the device.

What a row does is kept on the device; the host looks only now and then. A row whose sequence has ended goes on
computing until the host looks: it writes its last token's keys and values again and again to their own place, which
is beyond those that a session keeps, and its tokens to a column that nobody reads.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from stages.rollout.torch.cache import DecodeContext, ExtendContext, Padding, PrefillContext, SlotCache
from stages.rollout.torch.forward import Forward
from stages.rollout.torch.sampling import Sampler

PER_ROW = ("alive", "last", "position", "made", "limit", "tokens", "logprobs", "draws")


class Slots:
    """Rows that are free, alive, or keep what an ended turn left."""

    def __init__(self, model: PreTrainedModel, forward: Forward, sampler: Sampler, ends: Sequence[int]) -> None:
        """No row yet. `ends` are the tokens that end a completion."""
        self.forward, self.sampler = forward, sampler
        like = next(model.parameters())
        self.device = like.device
        self.cache = SlotCache(model.config, 0, 1, like)
        self.ends = self._tensor(ends)
        self.rows, self.most = 0, 0
        self.alive = self._zeros(0, dtype=torch.bool)
        self.last, self.position, self.made, self.limit = (self._zeros(0) for _ in range(4))
        self.tokens, self.logprobs = self._zeros(0, 1), self._zeros(0, 1, dtype=torch.float32)
        self.draws = self._zeros(0, 1, 3, dtype=torch.float64)

    def reserve(self, rows: int, positions: int, most: int) -> None:
        """Have at least so many rows, positions of each, and new tokens of each."""
        rows, most = max(rows, self.rows), max(most, self.most)
        if rows > self.rows or positions > self.cache.positions:
            self.cache.grow(rows, max(positions, self.cache.positions))
        if rows > self.rows or most > self.most:
            for name in PER_ROW:
                old = getattr(self, name)
                shape = list(old.shape)
                shape[0] = rows
                if name in ("tokens", "logprobs"):
                    shape[1] = most + 1  # the last column is what ended sequences go on writing
                if name == "draws" and self.sampler.needs_draws:
                    shape[1] = most
                new = old.new_zeros(shape)
                new[tuple(slice(size) for size in old.shape)] = old
                setattr(self, name, new)
            self.rows, self.most = rows, most

    def cut(self, rows: int) -> None:
        """Have the first `rows` only."""
        self.cache.cut(rows)
        for name in PER_ROW:
            setattr(self, name, getattr(self, name)[:rows])
        self.rows = rows

    def begin(self, prompts: Sequence[Sequence[int]], rows: Sequence[int], prompt_of: Sequence[int]) -> Tensor:
        """Prefill distinct `prompts`; row number i of `rows` gets the prompt `prompt_of[i]`.

        Returns the last hidden states [rows, width].
        """
        lengths = [len(prompt) for prompt in prompts]
        tokens = self._tensor([token for prompt in prompts for token in prompt])
        places = self._tensor(np.concatenate([np.arange(length) for length in lengths]))
        chosen, begun = self._tensor(prompt_of), self._tensor(rows)
        context = PrefillContext(self.cache, Padding.of(lengths, self.device), begun, chosen)
        hidden = self.forward.hidden_states(tokens[None], places[None], context)[0]
        return hidden[self._tensor(np.cumsum(lengths) - 1)][chosen]

    def extend(self, rows: Sequence[int], kept: Sequence[int], more: Sequence[Sequence[int]]) -> Tensor:
        """Prefill the tokens `more` after the `kept` first ones of `rows`; returns hidden states as `begin`."""
        lengths = [len(tokens) for tokens in more]
        context = ExtendContext.of(self.cache, self._tensor(rows), kept, lengths)
        tokens = self._tensor([token for piece in more for token in piece])
        hidden = self.forward.hidden_states(tokens[None], context.position_of[None], context)[0]
        return hidden[self._tensor(np.cumsum(lengths) - 1)]

    def start(
        self, rows: Sequence[int], lengths: Sequence[int], limits: Sequence[int], draws: Tensor | None, hidden: Tensor
    ) -> None:
        """Rows with prompts of `lengths` come alive; their first tokens are chosen from `hidden`.

        `draws` is [rows, at most `most`, 3] (see `stages.rollout.draws`), None where the sampler needs none.
        """
        chosen = self._tensor(rows)
        self.position[chosen], self.limit[chosen] = self._tensor(lengths), self._tensor(limits)
        self.made[chosen] = 0
        self.alive[chosen] = True
        if draws is not None:
            self.draws[chosen, : draws.shape[1]] = draws.to(self.device)
        self._choose(chosen, hidden)

    def decode(self, rows: int, width: int) -> None:
        """One more token in the first `rows` rows. None of them that is alive is longer than `width` with it."""
        context = DecodeContext.of(self.cache, self.position[:rows], min(width, self.cache.positions))
        hidden = self.forward.decode(self.last[:rows, None], context.positions[:, None], context)[:, 0]
        self.position[:rows] += self.alive[:rows]
        self._choose(context.rows, hidden)

    def look(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Which rows are alive, and how many tokens each has made."""
        alive, made = torch.stack([self.alive, self.made]).cpu().numpy()
        return alive.astype(np.bool_), made

    def read(self, rows: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Tokens and log-probabilities [rows, most + 1] of `rows`."""
        chosen = self._tensor(rows)
        return self.tokens[chosen].cpu().numpy(), self.logprobs[chosen].cpu().numpy()

    def end(self, rows: Sequence[int]) -> None:
        """These go on no more."""
        self.alive[self._tensor(rows)] = False

    def copy(self, rows: Sequence[int], sources: Sequence[int]) -> None:
        """Give `rows` the keys and values of `sources`."""
        self.cache.move(self._tensor(rows), self._tensor(sources))

    def swap(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Exchange all that rows `left` and `right` have."""
        to, source = self._tensor([*left, *right]), self._tensor([*right, *left])
        self.cache.move(to, source)
        for name in PER_ROW:
            tensor = getattr(self, name)
            tensor[to] = tensor[source]

    def _choose(self, rows: Tensor, hidden: Tensor) -> None:
        """The next token of `rows` from their hidden states: recorded, and fed to the next decode step."""
        made, alive = self.made[rows], self.alive[rows]
        draws = self.draws[rows, made.clamp(max=self.draws.shape[1] - 1)]
        tokens, logprobs = self.sampler.choose(self.forward.logits(hidden), draws)
        column = torch.where(alive, made, self.most)
        self.tokens[rows, column] = tokens
        self.logprobs[rows, column] = logprobs
        self.last[rows] = torch.where(alive, tokens, self.last[rows])
        made = made + alive
        self.made[rows] = made
        self.alive[rows] = alive & (tokens[:, None] != self.ends).all(-1) & (made < self.limit[rows])

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _tensor(self, values: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int64, device=self.device)
