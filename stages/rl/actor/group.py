"""A prompt that is played: its samples, those that have ended and those that have not.

A group that is half played is put into the store as trajectories too. There a sample that has not ended has a limit of
0 tokens; samples of which nothing was said are left out.
"""

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import numpy as np

from data.rows import Row
from data.trajectories import Trajectories
from stages.rl.messages import Lease
from stages.rl.prompts import request_seed
from stages.rl.rollouts import Judge, Rewarded, Terms, tabulate
from stages.rollout.engine import Completion
from stages.rollout.flight import Begun, Played, Start


@dataclass
class Group:
    """The samples of a leased prompt, by their numbers."""

    lease: Lease
    starts: list[Start]
    playing: set[int]
    begun: dict[int, Begun] = field(default_factory=dict[int, Begun])
    """What another actor has heard of those that are played."""
    kept: dict[int, Trajectories] = field(default_factory=dict[int, Trajectories])
    """Those that another actor has ended, each a table of one."""
    ended: dict[int, tuple[Played, Terms]] = field(default_factory=dict[int, tuple[Played, Terms]])
    grading: dict[int, Future[Any]] = field(default_factory=dict[int, Future[Any]])
    """Of those that have ended, the terms of the reward that are computed in a process of their own."""
    interrupted: dict[int, Played] = field(default_factory=dict[int, Played])

    @staticmethod
    def of(lease: Lease, row: Row, prompt: Sequence[int], seed: int, count: int) -> "Group":
        """Nothing is played yet. Its seeds follow from the run's `seed` and the lease, so it can be rebuilt."""
        seeds = [request_seed(seed, lease.position, lease.attempt, sample) for sample in range(count)]
        return Group(lease, [Start(row, prompt, each) for each in seeds], set(range(count)))

    def go_on_with(self, half: Trajectories) -> None:
        """Take over what another actor has put; what is of another attempt, and so has other seeds, is passed over."""
        numbers = {start.seed: number for number, start in enumerate(self.starts)}
        for index, seed in enumerate(half.seeds.tolist()):
            number = numbers.get(seed)
            if number is None:
                continue
            if half.limits[index]:
                self.kept[number] = half.pick(np.array([index]))
                self.playing.discard(number)
            else:
                self.begun[number] = begun_of(half, index)

    def end(self, number: int, played: Played, terms: Terms) -> None:
        """A sample has ended."""
        self.playing.discard(number)
        self.ended[number] = played, terms

    def interrupt(self, number: int, played: Played) -> None:
        """A sample is played as far as it may be here."""
        self.playing.discard(number)
        self.interrupted[number] = played

    @property
    def is_whole(self) -> bool:
        """Whether each sample has ended."""
        return not self.playing and not self.interrupted

    @property
    def is_graded(self) -> bool:
        """Whether the terms of those that have ended are there, or take no time."""
        return all(future.done() for future in self.grading.values())

    def table(self, judge: Judge) -> Trajectories:
        """All samples in their order. Waits for the terms of the reward. Raises their ValueError."""
        return self._table(judge, {n: judge.rewarded(0, n, *sample) for n, sample in self.ended.items()})

    def half(self, judge: Judge) -> Trajectories | None:
        """What there is of it; None where nothing was said. Samples whose terms are still computed have not ended."""
        rewarded: dict[int, Rewarded] = {}
        late = {number for number, future in self.grading.items() if not future.done()}
        for number, (played, terms) in self.ended.items():
            if number not in late:
                rewarded[number] = judge.rewarded(0, number, played, terms)
        for number, played in (self.interrupted | {number: self.ended[number][0] for number in late}).items():
            if played.tokens and all(played.observations):
                rewarded[number] = Rewarded(0, played, 0, [math.nan] * len(judge.terms), None)
        return self._table(judge, rewarded) if rewarded or self.kept else None

    def _table(self, judge: Judge, rewarded: dict[int, Rewarded]) -> Trajectories:
        count = len(judge.terms)
        if not self.kept:
            return tabulate([rewarded[number] for number in sorted(rewarded)], count)
        parts = self.kept | {number: tabulate([one], count) for number, one in rewarded.items()}
        return Trajectories.joined([parts[number] for number in sorted(parts)])


def begun_of(half: Trajectories, index: int) -> Begun:
    """The turns of a sample that has not ended. Which part of it the policy said, its mask tells."""
    part = slice(int(half.offsets[index]), int(half.offsets[index + 1]))
    tokens, mask = half.tokens[part], half.mask[part]
    logprobs, versions = half.logprobs[part], half.versions[part]
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)]
    spans = [(slice(a, b), bool(mask[a])) for a, b in pairwise(edges)]
    turns = [span for span, said in spans if said]
    observations = [cast(list[int], tokens[span].tolist()) for span, said in spans[1:] if not said]
    return Begun(
        [
            Completion(
                tokens[span].tolist(),
                logprobs[span].copy(),
                versions[span].copy(),
                "cancelled" if span == turns[-1] else "stop",
            )
            for span in turns
        ],
        observations,
    )


def begun_again(played: Played) -> Begun | None:
    """What was halted, to go on with in the same process; None where nothing was said."""
    return Begun(list(played.completions), list(played.observations)) if played.tokens else None
