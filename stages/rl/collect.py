"""The batch of a step in asynchronous mode: what lies in the shards, shared out to the ranks.

All ranks say what their shards have, agree on the groups with the lowest positions, and fetch their own shares from
whichever shards have them. Nobody waits for a certain position.
"""

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import torch.distributed as dist

from data.job import Job
from data.packing import balanced_parts
from data.trajectories import Trajectories
from stages.rl.children import endpoint
from stages.rl.choice import Choice, Offer, choose, thrown_away
from stages.rl.config import StageConfig
from stages.rl.keeper import FAILURES
from stages.rl.services import Services, window_of
from stages.rl.state import State
from stages.rl.store.client import ShardClient
from stages.trainer.device import largest

PAUSES = (0.005, 0.25)
"""Seconds between two looks at what there is: the first, and the longest."""
TAKE_SECONDS = 300.0
"""Without an answer of a shard, until the job fails. Its rank starts it again within seconds."""


class Share(NamedTuple):
    """A part of a batch."""

    offers: list[Offer]
    """Its groups over all ranks, in the order of their places; the same on all ranks."""
    ranks: list[int]
    """Which learns from each."""
    mine: Trajectories
    """This rank's; `groups` are places."""
    state: State
    """With what was thrown away meanwhile."""
    stale: int
    """Groups that were thrown away because they were too old."""
    there: int
    """Groups that were there."""
    seconds_waiting: float
    """For groups that were not there yet."""
    seconds_fetching: float
    """Agreeing, and fetching."""


class Collector:
    """Collects batches. All ranks call `collect` together."""

    def __init__(
        self,
        config: StageConfig,
        ids: pa.ChunkedArray,
        folder: Path,
        job: Job,
        services: Services,
        waits: Callable[[State, int, float, float], bool],
    ) -> None:
        """`ids` are those of the rows of the train split.

        `waits` is told of the state, how many groups are there, for how many seconds it has waited, and how many of
        them are new; it says whether to stop.
        """
        self.config, self.ids, self.job, self.services, self.waits = config, ids, job, services, waits
        self.window = window_of(config)
        paths = [endpoint(folder, f"shard-{number:04d}") for number in range(job.world_size)]
        self.shards = [ShardClient(path, TAKE_SECONDS / 10) for path in paths]

    def collect(self, state: State, missing: int, first_place: int, chosen: frozenset[int]) -> Share | None:
        """`missing` groups beside the `chosen` positions, their places from `first_place` on. None: to be stopped.

        Waits as long as there are too few.
        """
        began, waiting, pause, stale = time.monotonic(), 0.0, PAUSES[0], 0
        while True:
            shelved = self.services.keeper.ready()
            mine = [Offer(s.position, s.attempt, s.tokens, s.samples, s.oldest, self.job.rank) for s in shelved]
            offers, given_up = gathered(mine, self.services.given_up() if self.job.is_first else ())
            found = choose(offers, state, missing, chosen, self.config.rl.asynchronous)
            state, stale = self._told(state, found, given_up, chosen), stale + found.stale
            if len(found.taken) == missing:
                break
            time.sleep(pause)
            if self.waits(state, len(found.taken), time.monotonic() - began, pause):
                return None
            waiting, pause = waiting + pause, min(2 * pause, PAUSES[1])
        shares = balanced_parts([offer.tokens for offer in found.taken], self.job.world_size)
        ranks = [0] * missing
        for rank, share in enumerate(shares):
            for place in share:
                ranks[place] = rank
        here = {place + first_place: found.taken[place] for place in shares[self.job.rank]}
        fetched = self._fetch(here)
        busy = time.monotonic() - began - waiting
        return Share(found.taken, ranks, fetched, state, stale, len(offers), waiting, busy)

    def _told(self, state: State, found: Choice, given_up: set[int], chosen: Set[int]) -> State:
        """The state with what is thrown away, which the shard gets to know at once."""
        config, settings = self.config, self.config.rl.asynchronous
        changed = thrown_away(state, found, given_up, chosen, config.seed, self.ids, self.window, settings)
        if changed != state:
            self.services.tell(changed)
        return changed

    def _fetch(self, wanted: dict[int, Offer]) -> Trajectories:
        """The groups at these places of the batch, from their shards."""
        parts: list[Trajectories] = []
        for shard in sorted({offer.shard for offer in wanted.values()}):
            places = [place for place, offer in wanted.items() if offer.shard == shard]
            part = self._take(shard, [(wanted[place].position, wanted[place].attempt) for place in places])
            parts.append(replace(part, groups=np.array(places, np.int32)[part.groups]))
        joined = Trajectories.joined(parts) if parts else no_trajectories(len(self.config.rl.rewards))
        return joined.pick(np.argsort(joined.groups, kind="stable")) if len(parts) > 1 else joined

    def _take(self, shard: int, keys: Sequence[tuple[int, int]]) -> Trajectories:
        """These groups; waits while the shard is being started again."""
        end, pause = time.monotonic() + TAKE_SECONDS, PAUSES[0]
        while True:
            try:
                return self.shards[shard].take(keys)
            except (*FAILURES, KeyError) as error:
                if time.monotonic() > end:
                    raise RuntimeError(f"shard {shard} has not given groups that it had: {error}") from error
                self.job.beat(f"waiting for shard {shard}, which was lost")
                time.sleep(pause)
                pause = min(2 * pause, PAUSES[1])


def gathered(mine: Sequence[Offer], given_up: Sequence[int]) -> tuple[list[Offer], set[int]]:
    """The offers of all ranks, and the positions that rank 0 has given up. All ranks call it together."""
    rows = [*mine, *(Offer(position, -1, 0, 0, 0, 0) for position in given_up)]
    count = largest(len(rows))
    if count == 0:
        return [], set()
    padded = torch.full((count, len(Offer._fields)), -1, dtype=torch.int64)
    padded[: len(rows)] = torch.tensor(rows, dtype=torch.int64).reshape(-1, len(Offer._fields))
    everyones = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, padded)
    found = [Offer(*row) for row in torch.cat(everyones).tolist() if row[0] >= 0]
    return [o for o in found if o.attempt >= 0], {o.position for o in found if o.attempt < 0}


def no_trajectories(num_terms: int) -> Trajectories:
    """Of a rank that has nothing to learn from."""
    int32: npt.NDArray[np.int32] = np.zeros(0, np.int32)
    flags, floats = np.zeros(0, np.bool_), np.zeros(0, np.float32)
    return Trajectories(
        tokens=int32, mask=flags, logprobs=floats, versions=int32, offsets=np.zeros(1, np.int64), prompt_lengths=int32,
        rewards=floats, terms=np.zeros((0, num_terms), np.float32), finished=flags, limits=int32, graded=flags,
        groups=int32, seeds=np.zeros(0, np.int64), prompt_ids=(),
    )  # fmt: skip
