"""Who has which row: sequences in flight, what ended turns have kept, and how waiting requests get theirs."""

import heapq
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from stages.rollout.draws import uniforms
from stages.rollout.torch.cache import memory_of
from stages.rollout.torch.compiler import Compiler
from stages.rollout.torch.sample import Kept, Sample
from stages.rollout.torch.slots import Slots

PREFILL_TOKENS = 16_384
"""Prompt tokens of one forward pass, with the padding to the longest prompt that attention needs."""
SEEN_TOKENS = 131_072
"""Tokens of rows that go on which one forward pass looks at: each layer gathers their keys and values."""
SHARED_PROMPT = 64
"""Tokens from which on a prompt that a sample in flight has too is copied from its row."""
COMPACT_SHARE = 0.75
"""Samples move to the first rows once no more than this share of the rows that decode is alive."""
POSITIONS = 256
"""Of each row at first; they double as they are needed."""


class Rows:
    """The rows of `slots`, at most `most`, and fewer where the longest may become so long that memory is short.

    All rows are as long as the longest, so their number is decided by how long any of those in flight may become.
    """

    def __init__(self, slots: Slots, most: int, memory_share: float, compiler: Compiler | None = None) -> None:
        """Keys and values take at most `memory_share` of `memory_of`. `compiler` where decode steps are compiled."""
        self.slots, self.most, self.memory_share, self.compiler = slots, most, memory_share, compiler
        self.allowed = most
        """Rows that memory allowed when last looked."""
        self.playing: dict[int, Sample] = {}
        """By row."""
        self.kept: dict[int, Kept] = {}
        """By session, the longest idle first."""
        self.free: list[int] = []
        """A heap: the first rows first, since a decode step computes all rows up to the last that is alive."""
        self.prefilled = 0
        """Prompt tokens that went through the model."""

    @cached_property
    def capacity(self) -> int:
        """Positions that there may be, of all rows together."""
        return int(self.memory_share * memory_of(self.slots.device)) // self.slots.cache.bytes_each

    def check(self, sample: Sample) -> None:
        """Raise ValueError when `sample` would not have room if it were alone."""
        if sample.longest > self.capacity:
            size, room = (number * self.slots.cache.bytes_each / 2**30 for number in (sample.longest, self.capacity))
            raise ValueError(
                f"request {sample.key}: with {len(sample.prompt)} tokens of prompt and up to {sample.limit} new ones, "
                f"its keys and values take {size:.3g} GiB, but {room:.3g} GiB are free for them "
                f"(engine.memory_share: {self.memory_share:g}); lower max_new_tokens, or raise engine.memory_share"
            )

    def admit(self, waiting: Sequence[Sample]) -> list[Sample]:
        """Start the first ones of `waiting`, as many as have room and fit one forward pass.

        Either all of them go on from a row that has their first tokens, or all begin from nothing.
        """
        self._expect(waiting)
        in_flight = {sample.prompt: row for row, sample in self.playing.items() if not sample.stale}
        taken: list[Sample] = []
        sources: list[Kept | None] = []
        longest, seen, prompts = 0, 0, set[tuple[int, ...]]()
        for sample in waiting:
            source = self._source(sample, in_flight)
            new = len(sample.prompt) - (source.length if source else 0)
            longest, seen = max(longest, new), max(seen, len(sample.prompt))
            # What goes on from rows of its own shares nothing with its neighbours.
            count = len(taken) + 1 if source else len(prompts | {sample.prompt})
            if taken and ((source is None) != (sources[0] is None) or longest * count > PREFILL_TOKENS):
                break
            if taken and source and seen * count > SEEN_TOKENS:
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
            moved = self._have(max(len(sample.prompt) for sample in taken) + 1)
            self.slots.reserve(0, 0, max(sample.limit for sample in taken))
            going = [Kept(moved.get(source.row, source.row), source.tokens) for source in sources if source]
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
        self._exchange(high, [row for row in range(count) if row not in self.playing])

    def _exchange(self, high: Sequence[int], low: Sequence[int]) -> dict[int, int]:
        """What is in rows `high` and `low` changes places; no sample plays in `low`. Returns the new row of each."""
        self.slots.swap(low, high)
        place = dict(zip([*low, *high], [*high, *low], strict=True))
        for row in high:
            if row in self.playing:
                sample = self.playing.pop(row)
                sample.row = place[row]
                self.playing[sample.row] = sample
        for session, kept in self.kept.items():
            self.kept[session] = Kept(place.get(kept.row, kept.row), kept.tokens)
        self.free = [place.get(row, row) for row in self.free]
        heapq.heapify(self.free)
        return place

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
        session = sample.session
        own = session if session is not None and source is not None and self.kept.get(session) is source else None
        excess = len(self.playing) + len(self.kept) + (own is None) - self.allowed
        if excess > 0:
            idle = [other for other in self.kept if other != own]
            if excess > len(idle):
                return None
            self.forget(idle[:excess])
        return heapq.heappop(self.free) if own is None else self.kept.pop(own).row

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

    def _expect(self, waiting: Sequence[Sample]) -> None:
        """Have rows for those who wait, as many as memory has room for."""
        longest = max(sample.longest for sample in (*self.playing.values(), *waiting[: self.most]))
        self.allowed = min(self.most, self.capacity // max(longest, self.slots.cache.positions))
        wanted, rows = len(self.playing) + len(self.kept) + len(waiting), self.slots.rows
        if rows < min(wanted, self.allowed):
            more = min(self.allowed, max(wanted, 2 * rows))
            self.slots.reserve(more, 0, 0)
            self.free = sorted([*self.free, *range(rows, more)])  # sorted is a heap

    def _have(self, needed: int) -> dict[int, int]:
        """Have positions for `needed` tokens of a row; with fewer rows, when all would not fit any more.

        Returns the new row of what has moved.
        """
        old = self.slots.cache.positions
        if needed > old:
            possible = max(sample.longest for sample in self.playing.values())
            positions = min(possible, max(needed, 2 * old, POSITIONS))
            moved = self._cut(self.capacity // positions)
            self.slots.reserve(0, positions, 0)
            return moved
        return {}

    def _cut(self, rows: int) -> dict[int, int]:
        """Have at most so many rows; what is in use fits them. Returns the new row of what has moved."""
        if self.slots.rows <= rows:
            return {}
        used = [*self.playing, *(kept.row for kept in self.kept.values())]
        high, low = [row for row in used if row >= rows], [row for row in self.free if row < rows]
        moved = self._exchange(high, low[: len(high)])
        self.free = sorted(row for row in self.free if row < rows)
        self.slots.cut(rows)
        return moved


def _power_of_two(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << (number - 1).bit_length()
