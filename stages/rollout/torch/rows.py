"""Who has which row: sequences in flight, what ended turns have kept, and how waiting requests get theirs."""

import heapq
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from stages.rollout.draws import uniforms
from stages.rollout.torch.compiler import Compiler
from stages.rollout.torch.sample import Kept, Sample
from stages.rollout.torch.slots import Slots

PREFILL_TOKENS = 16_384
"""Prompt tokens of one forward pass, with the padding to the longest prompt that attention needs."""
SHARED_PROMPT = 64
"""Tokens from which on a prompt that a sample in flight has too is copied from its row."""
COMPACT_SHARE = 0.75
"""Samples move to the first rows once no more than this share of the rows that decode is alive."""
POSITIONS = 256
"""Of each row at first; they double as they are needed."""


class Rows:
    """The rows of `slots`, at most `most`."""

    def __init__(self, slots: Slots, most: int, compiler: Compiler | None = None) -> None:
        """`compiler` where decode steps are compiled."""
        self.slots, self.most, self.compiler = slots, most, compiler
        self.playing: dict[int, Sample] = {}
        """By row."""
        self.kept: dict[int, Kept] = {}
        """By session, the longest idle first."""
        self.free: list[int] = []
        """A heap: the first rows first, since a decode step computes all rows up to the last that is alive."""
        self.prefilled = 0
        """Prompt tokens that went through the model."""

    def admit(self, waiting: Sequence[Sample]) -> list[Sample]:
        """Start the first ones of `waiting`, as many as have room and fit one forward pass.

        Either all of them go on from a row that has their first tokens, or all begin from nothing.
        """
        self._expect(len(waiting))
        in_flight = {sample.prompt: row for row, sample in self.playing.items() if not sample.stale}
        taken: list[Sample] = []
        sources: list[Kept | None] = []
        longest, prompts = 0, set[tuple[int, ...]]()
        for sample in waiting:
            source = self._source(sample, in_flight)
            new = len(sample.prompt) - (source.length if source else 0)
            longest = max(longest, new)
            # What goes on from rows of its own shares nothing with its neighbours.
            count = len(taken) + 1 if source else len(prompts | {sample.prompt})
            if taken and ((source is None) != (sources[0] is None) or longest * count > PREFILL_TOKENS):
                break
            row = self._row(sample, source)
            if row is None:
                break
            sample.row = row
            self.playing[row] = sample
            prompts.add(sample.prompt)
            taken.append(sample)
            sources.append(source)
        if taken:
            # One more: a row that ends with its first token goes on writing to that token's place.
            self._have(max(len(sample.prompt) for sample in taken) + 1)
            self.slots.reserve(0, 0, max(sample.limit for sample in taken))
            going = [source for source in sources if source]
            self._start(taken, self._extend(taken, going) if going else self._begin(taken))
        return taken

    def decode(self, steps: int) -> None:
        """So many tokens more in each row."""
        longest = max(sample.length for sample in self.playing.values())
        self._have(longest + steps)
        if self.compiler is None:
            for step in range(steps):
                self.slots.decode(max(self.playing) + 1, longest + step)
            return
        rows, positions = self.slots.rows, self.slots.cache.positions
        width = min(_power_of_two(longest + steps), positions)
        with self.compiler.step(rows, width, positions):
            for _ in range(steps):
                self.slots.decode(rows, width)

    def compact(self) -> None:
        """Bring the samples in flight to the first rows, when they are few."""
        count = len(self.playing)
        if count > COMPACT_SHARE * (max(self.playing) + 1):
            return
        high = [row for row in self.playing if row >= count]
        low = [row for row in range(count) if row not in self.playing]
        self.slots.swap(low, high)
        place = dict(zip([*low, *high], [*high, *low], strict=True))
        for row, target in zip(high, low, strict=True):
            sample = self.playing.pop(row)
            sample.row = target
            self.playing[target] = sample
        for session, kept in self.kept.items():
            self.kept[session] = Kept(place.get(kept.row, kept.row), kept.tokens)
        self.free = [place.get(row, row) for row in self.free]
        heapq.heapify(self.free)

    def leave(self, sample: Sample, tokens: Sequence[int]) -> None:
        """`sample` has ended with `tokens`; its session keeps all but the last, which has not been computed."""
        del self.playing[sample.row]
        if sample.session is None or sample.stale:
            heapq.heappush(self.free, sample.row)
        else:
            self.forget([sample.session])
            self.kept[sample.session] = Kept(sample.row, (*sample.prompt, *tokens[:-1]))

    def forget(self, sessions: Iterable[int]) -> None:
        """Give up what these have kept."""
        for session in sessions:
            if session in self.kept:
                heapq.heappush(self.free, self.kept.pop(session).row)

    def _source(self, sample: Sample, in_flight: dict[tuple[int, ...], int]) -> Kept | None:
        """A row that has the first tokens of `sample`."""
        kept = self.kept.get(sample.session) if sample.session is not None else None
        if kept and kept.begins(sample.prompt):
            return kept
        if len(sample.prompt) >= SHARED_PROMPT and sample.prompt in in_flight:
            return Kept(in_flight[sample.prompt], sample.prompt[:-1])
        return None

    def _row(self, sample: Sample, source: Kept | None) -> int | None:
        """The row of its session, a free one, or that of the session that is idle for the longest."""
        if source and sample.session is not None and self.kept.get(sample.session) is source:
            return self.kept.pop(sample.session).row
        if not self.free and self.kept:
            self.forget([next(iter(self.kept))])
        return heapq.heappop(self.free) if self.free else None

    def _extend(self, taken: Sequence[Sample], sources: Sequence[Kept]) -> Tensor:
        rows = [sample.row for sample in taken]
        copied = [(row, source.row) for row, source in zip(rows, sources, strict=True) if row != source.row]
        if copied:
            self.slots.copy([row for row, _ in copied], [row for _, row in copied])
        more = [sample.prompt[source.length :] for sample, source in zip(taken, sources, strict=True)]
        self.prefilled += sum(map(len, more))
        return self.slots.extend(rows, [source.length for source in sources], more)

    def _begin(self, taken: Sequence[Sample]) -> Tensor:
        distinct = {prompt: index for index, prompt in enumerate(dict.fromkeys(sample.prompt for sample in taken))}
        self.prefilled += sum(map(len, distinct))
        return self.slots.begin(
            list(distinct), [sample.row for sample in taken], [distinct[sample.prompt] for sample in taken]
        )

    def _start(self, taken: Sequence[Sample], hidden: Tensor) -> None:
        limits = [sample.limit for sample in taken]
        draws = None
        if self.slots.sampler.needs_draws:
            of_each = [uniforms(sample.request.seed, max(limits)) for sample in taken]
            draws = torch.from_numpy(np.stack(of_each))
        lengths = [len(sample.prompt) for sample in taken]
        self.slots.start([sample.row for sample in taken], lengths, limits, draws, hidden)

    def _expect(self, waiting: int) -> None:
        """Have rows for `waiting` more, if that many may be."""
        wanted, rows = len(self.playing) + len(self.kept) + waiting, self.slots.rows
        if rows < min(wanted, self.most):
            more = min(self.most, max(wanted, 2 * rows))
            self.slots.reserve(more, 0, 0)
            self.free = sorted([*self.free, *range(rows, more)])  # sorted is a heap

    def _have(self, needed: int) -> None:
        """Have positions for `needed` tokens of a row."""
        old = self.slots.cache.positions
        if needed > old:
            possible = max(len(sample.prompt) + sample.limit for sample in self.playing.values())
            self.slots.reserve(0, max(needed, min(possible, max(2 * old, POSITIONS))), 0)


def _power_of_two(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << (number - 1).bit_length()
