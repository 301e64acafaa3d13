"""The rollouts of a step: one round of prompts, or, with dynamic sampling, as many as it takes.

Dynamic sampling (DAPO, Yu et al. 2025, arXiv 2503.14476, section 3.2): prompts from whose samples nothing can be
learned, because all are right or all are wrong, make room for new ones until the step is full.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import torch

from data.rows import Row
from data.trajectories import Trajectories
from stages.algorithms.algorithm import Algorithm
from stages.rl.config import StageConfig
from stages.rl.parity import Comparison, Gate, metrics_of
from stages.rl.prompts import draw_prompts
from stages.rl.rollouts import Player, Task
from stages.rl.samples import Samples
from stages.rl.skipping import not_zero
from stages.rl.state import State
from stages.rl.step_files import StepFiles
from stages.rl.summary import broken_grader
from stages.trainer.device import any_rank, total


class Rollouts(NamedTuple):
    """What a step has played."""

    kept: Trajectories
    """This rank's share of what is learned from; `groups` number the prompts over all ranks."""
    everything: Trajectories
    """All that this rank has played, with what is not learned from; `groups` are slots."""
    prompts: list[str]
    """Ids of the prompts that all ranks have played, by slot."""
    cursor: int
    """Behind all prompts that were drawn."""
    read_back: bool
    """Whether this rank has found all of it on disk."""
    metrics: dict[str, float]


class Rounds:
    """Plays the steps of a start that goes on after step `first`."""

    def __init__(
        self,
        config: StageConfig,
        algorithm: Algorithm,
        train: pa.Table,
        player: Player,
        step_files: StepFiles,
        gate: Gate,
        first: int,
        playing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`train` is the split that prompts are drawn from; the engine generates inside `playing()`."""
        # It stays in Arrow's columns: as dictionaries, ten million rows would take 10 GB on every rank.
        self.config, self.algorithm, self.train = config, algorithm, train
        self.player, self.step_files, self.gate, self.first = player, step_files, gate, first
        self.job, self.playing = step_files.job, playing

    def play(self, step: int, state: State) -> Rollouts:
        """Play `step` with the policy of `state`. All ranks call it together.

        Each round draws as many prompts as are still missing, and shares them out among the ranks, as evenly as it
        can. What a round kept is counted over all ranks before the next one is drawn; so the result depends on the
        seed and the policy alone, and a run that was killed goes on with the round that it was in.
        """
        rows: list[int] = []
        rounds: list[Trajectories] = []
        comparisons: list[Comparison] = []
        kept: list[int] = []
        latest = range(0)
        cursor, read_back = state.cursor, True
        while len(rounds) <= self.algorithm.resample and len(kept) < self.config.rl.prompts_per_step:
            missing = self.config.rl.prompts_per_step - len(kept)
            drawn, cursor = draw_prompts(self.config.seed, self.train["id"], cursor, missing, state.set_aside)
            latest, rows = range(len(rows), len(rows) + missing), rows + drawn
            mine = [slot for slot in latest if slot % self.job.world_size == self.job.rank]
            tasks = [Task(slot, self._row(rows[slot])) for slot in mine]
            trajectories, compared, found = self._round(step, len(rounds), state.policy_version, tasks)
            kept += with_signal(self.algorithm, trajectories, self.config.rl.samples_per_prompt, latest)
            rounds.append(trajectories)
            comparisons.append(compared)
            read_back = read_back and found
        everything = Trajectories.joined(rounds) if len(rounds) > 1 else rounds[0]
        metrics = metrics_of(comparisons)
        if self.algorithm.resample:
            metrics |= {"rounds": len(rounds), "groups_kept": len(kept) / len(rows)}
        # With nothing to learn from, the last round stands for the step: the update will leave it out.
        kept_here = groups_in(everything, kept or latest) if self.algorithm.resample else everything
        ids = [self.train["id"][row].as_py() for row in rows]
        return Rollouts(kept_here, everything, ids, cursor, read_back, metrics)

    def _round(self, step: int, number: int, version: int, tasks: list[Task]) -> tuple[Trajectories, Comparison, bool]:
        """Rollouts that the gate has passed and the files of the step have, and whether this rank has found them there.

        Where they do not pass, or the grader is broken (RuntimeError), nothing is committed, so a later start plays
        them anew; but not what was found, which had passed before. The first step after a checkpoint was played by the
        very weights that are in it: if it does not pass, they have come back wrong. Later ones were played by weights
        that this start has trained anew, which on a card are the same but for rounding, and are played anew where they
        part.
        """
        found = self.step_files.read(step, number, version, {task.slot: task.row["id"] for task in tasks})
        trajectories = self._play(step, tasks) if found is None else found
        compared = self.gate.compare(trajectories, step, version)
        if not compared.passes and step > self.first + 1 and any_rank(found is not None):
            trajectories = trajectories if found is None else self._play(step, tasks)
            found = None
            compared = self.gate.compare(trajectories, step, version)
        broken = broken_grader(trajectories, self.step_files.terms)
        if found is None:
            self.step_files.write(step, number, version, trajectories, refused=bool(broken) or not compared.passes)
        if not compared.passes:
            origin = "" if found is None else ", which were read back after a resume"
            self.gate.refuse(compared, version, f"rollouts of step {step}{origin}")
        if broken:
            raise RuntimeError(f"step {step}: {broken}")
        return trajectories, compared, found is not None

    def _play(self, step: int, tasks: list[Task]) -> Trajectories:
        with self.playing():
            return self.player.play(step, tasks)

    def _row(self, index: int) -> Row:
        return self.train.slice(index, 1).to_pylist()[0]


def with_signal(algorithm: Algorithm, trajectories: Trajectories, samples_per_prompt: int, slots: range) -> list[int]:
    """Those of `slots` from which the update would learn, over all ranks; without dynamic sampling all of them."""
    if not algorithm.resample:
        return list(slots)
    samples = Samples.of(trajectories, samples_per_prompt, torch.device("cpu"))
    every = np.arange(len(samples.sizes))
    num_tokens, num_samples = (int(value) for value in total(float(samples.sizes.sum()), len(every)))
    batch = samples.batch(every, num_tokens, num_samples, _no_forward)
    quantity = algorithm.run_selection(batch, samples.given)
    assert algorithm.skip_where_zero is not None
    teaches = not_zero(quantity, algorithm.kinds[algorithm.skip_where_zero], batch)
    found = np.zeros(len(slots))
    found[samples.groups[teaches] - slots.start] = 1
    return [slot for slot, there in zip(slots, total(*found.tolist()), strict=True) if there]


def groups_in(trajectories: Trajectories, slots: Sequence[int]) -> Trajectories:
    """The groups in `slots`, which are in order, numbered by their place there."""
    picked = trajectories.pick(np.flatnonzero(np.isin(trajectories.groups, slots)))
    return replace(picked, groups=np.searchsorted(slots, picked.groups).astype(np.int32))


def _no_forward(_: frozenset[str]) -> NoReturn:
    raise AssertionError("the checker lets no forward pass into the selection")
