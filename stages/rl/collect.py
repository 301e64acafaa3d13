"""The batch of a step in asynchronous mode: what lies in the shards, shared out to the ranks.

All ranks say what their shards have, agree on the groups with the lowest positions, and fetch their own shares from
whichever shards have them. That is done in a thread, beside the update before it, so the thread agrees in a process
group of its own. As long as that update lasts it waits for those that come next in order: what is overtaken becomes too
old, and that would mostly be long completions. Once a learner waits, nobody waits for a certain position.
"""

import threading
import time
from collections.abc import Sequence, Set
from concurrent.futures import Future, wait
from dataclasses import replace
from datetime import timedelta
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
from stages.rl.choice import Choice, Ready, choose, thrown_away
from stages.rl.config import StageConfig
from stages.rl.keeper import FAILURES
from stages.rl.servers import shard_name
from stages.rl.services import Services, window_of
from stages.rl.state import State
from stages.rl.store.client import ShardClient

LOOK_SECONDS = 0.1
"""That a shard waits for its part of a batch before it says what there is."""
PAUSES = (0.01, 0.25)
"""Seconds between two looks: at first, at most."""
TAKE_SECONDS = 300.0
"""Without an answer of a shard, until the job fails. Its rank starts it again within seconds."""
CLOSE_SECONDS = 5.0


class Share(NamedTuple):
    """A part of a batch."""

    taken: list[Ready]
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


class Collector:
    """Collects batches, one after the other. All ranks make one, and call `begin` together."""

    def __init__(self, config: StageConfig, ids: pa.ChunkedArray, folder: Path, job: Job, services: Services) -> None:
        """`ids` are those of the rows of the train split."""
        self.config, self.ids, self.job, self.services = config, ids, job, services
        self.window = window_of(config)
        paths = [endpoint(folder, shard_name(number)) for number in range(job.world_size)]
        self.shards = [ShardClient(path, TAKE_SECONDS / 10) for path in paths]
        ranks = dist.new_group(backend="gloo", timeout=timedelta(seconds=job.collective_seconds))
        assert isinstance(ranks, dist.ProcessGroup)
        self.ranks = ranks
        self.stop = False
        """Set on any rank it ends what was begun, on all of them."""
        self._hurry = threading.Event()
        """Set on any rank it takes what is there."""
        self.there = 0
        """How many of the groups that are missing are there."""
        self.state = State()
        """With what was thrown away since it was begun."""
        self.share: Future[Share | None] | None = None

    def begin(self, state: State, missing: int, first_place: int, chosen: frozenset[int]) -> None:
        """Collect `missing` groups beside the `chosen` positions, their places from `first_place` on.

        `state` is as it will be when they are learned from, but for the `chosen` positions. Returns at once.
        """
        self.there, self.state, self.share = 0, state, Future()
        self._hurry.clear()
        arguments = (self.share, missing, first_place, chosen)
        threading.Thread(target=self._run, args=arguments, name="collector", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Wait for what was begun, which is in a hurry now; whether it has ended."""
        assert self.share, "nothing was begun"
        self._hurry.set()
        return bool(wait([self.share], seconds).done)

    def end(self) -> Share | None:
        """What was begun and has ended; None when it was stopped."""
        assert self.share and self.share.done()
        share, self.share = self.share.result(), None
        return share

    def close(self) -> None:
        """Collect nothing more."""
        self.stop = True
        if self.share:
            self.wait(CLOSE_SECONDS)

    def _run(self, share: Future[Share | None], missing: int, first_place: int, chosen: frozenset[int]) -> None:
        try:
            share.set_result(self._collect(missing, first_place, chosen))
        except BaseException as error:  # noqa: BLE001 - raised where the share is asked for
            share.set_exception(error)

    def _collect(self, missing: int, first_place: int, chosen: frozenset[int]) -> Share | None:
        pause, stale, lacking = PAUSES[0], 0, 0
        part = -(-missing // self.job.world_size)
        while True:
            shelved = self.services.keeper.ready(lacking, part, LOOK_SECONDS)
            mine = [Ready(s.position, s.attempt, s.tokens, s.samples, s.oldest, self.job.rank) for s in shelved]
            given_up = self.services.news.given_up() if self.job.is_first else ()
            ready, given_up, stop, hurry = gathered(mine, given_up, self.stop, self._hurry.is_set(), self.ranks)
            if stop:
                return None
            found = choose(ready, self.state, missing, chosen, self.config.rl.asynchronous)
            self._throw(found, given_up, chosen)
            self.there, stale = len(found.taken), stale + found.stale
            lacking = missing - self.there
            if not lacking and (hurry or is_in_order(found.taken, self.state, chosen)):
                break
            self._hurry.wait(pause) if not hurry else time.sleep(pause)
            pause = min(1.1 * pause, PAUSES[1])
        shares = balanced_parts([one.tokens for one in found.taken], self.job.world_size)
        ranks = [0] * missing
        for rank, share in enumerate(shares):
            for place in share:
                ranks[place] = rank
        here = {place + first_place: found.taken[place] for place in shares[self.job.rank]}
        return Share(found.taken, ranks, self._fetch(here), self.state, stale, len(ready))

    def _throw(self, found: Choice, given_up: set[int], chosen: Set[int]) -> None:
        """Throw away what has to be, which the shard gets to know at once."""
        config, settings = self.config, self.config.rl.asynchronous
        changed = thrown_away(self.state, found, given_up, chosen, config.seed, self.ids, self.window, settings)
        if changed != self.state:
            self.state = changed
            self.services.throw(changed)

    def _fetch(self, wanted: dict[int, Ready]) -> Trajectories:
        """The groups at these places of the batch, from their shards."""
        parts: list[Trajectories] = []
        for shard in sorted({one.shard for one in wanted.values()}):
            places = [place for place, one in wanted.items() if one.shard == shard]
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


def is_in_order(taken: Sequence[Ready], state: State, chosen: Set[int]) -> bool:
    """Whether these are the positions that come next, but for the `chosen` ones."""
    passed = sum(1 for position in {*state.ahead, *chosen} if state.cursor <= position < taken[-1].position)
    return taken[-1].position - state.cursor + 1 == passed + len(taken)


def gathered(
    mine: Sequence[Ready], given_up: Sequence[int], stop: bool, hurry: bool, ranks: dist.ProcessGroup
) -> tuple[list[Ready], set[int], bool, bool]:
    """The ready groups of all ranks, positions that rank 0 has given up, and whether any says stop, or is in a hurry.

    All ranks call it together.
    """
    rows = [*mine, *(Ready(position, -1, 0, 0, 0, 0) for position in given_up)]
    most = torch.tensor([len(rows), stop, hurry])
    dist.all_reduce(most, dist.ReduceOp.MAX, ranks)
    count, stopped, hurried = most.tolist()
    padded = torch.full((count, len(Ready._fields)), -1, dtype=torch.int64)
    padded[: len(rows)] = torch.tensor(rows, dtype=torch.int64).reshape(-1, len(Ready._fields))
    everyones = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    if count:
        dist.all_gather(everyones, padded, ranks)
    found = [Ready(*row) for row in torch.cat(everyones).tolist() if row[0] >= 0]
    given = {one.position for one in found if one.attempt < 0}
    return [one for one in found if one.attempt >= 0], given, bool(stopped), bool(hurried)


def no_trajectories(num_terms: int) -> Trajectories:
    """Of a rank that has nothing to learn from."""
    int32: npt.NDArray[np.int32] = np.zeros(0, np.int32)
    flags, floats = np.zeros(0, np.bool_), np.zeros(0, np.float32)
    return Trajectories(
        tokens=int32, mask=flags, logprobs=floats, versions=int32, offsets=np.zeros(1, np.int64), prompt_lengths=int32,
        rewards=floats, terms=np.zeros((0, num_terms), np.float32), finished=flags, limits=int32, graded=flags,
        groups=int32, seeds=np.zeros(0, np.int64), prompt_ids=(),
    )  # fmt: skip
