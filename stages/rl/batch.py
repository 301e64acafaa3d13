"""A step's batch in asynchronous mode: collected, compared with the policy, and written down."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch.distributed as dist

from data.job import Job
from data.trajectories import Trajectories
from stages.algorithms.algorithm import Algorithm
from stages.rl.batch_log import REJECTED, Logged, digest
from stages.rl.choice import Ready, staleness
from stages.rl.collect import Collector, Share
from stages.rl.config import StageConfig
from stages.rl.news import Patience
from stages.rl.parity import Comparison, Gate, metrics_of
from stages.rl.parts import Parts
from stages.rl.prompts import row_at
from stages.rl.rounds import groups_in, with_signal
from stages.rl.services import Services, window_of
from stages.rl.state import State
from stages.rl.summary import broken_grader

CHECK_SECONDS = 0.1
"""Between two looks at what else there is to do while groups are missing."""
HOPELESS = 2
"""Windows of prompts that are set aside, and nothing to learn from between them; then the fault is no prompt's."""


class Batch(NamedTuple):
    """What a step learns from."""

    kept: Trajectories
    """This rank's share; `groups` number the groups over all ranks."""
    everything: Trajectories
    """The same with what dynamic sampling leaves out; `groups` are places among `taken`."""
    taken: list[Ready]
    """All groups that were taken, over all ranks."""
    rows: list[Logged]
    """The log of what is learned from; the same on all ranks."""
    prompts: list[str]
    """Ids of the prompts of `taken`."""
    state: State
    """With what was thrown away while it was collected."""
    metrics: dict[str, float]
    seconds_waiting: float
    """For groups that were not there, or not here, yet."""
    seconds_agreeing: float


class Facts(NamedTuple):
    """Of a group, what only some ranks know: the one that learns from it, and the one whose shard had it."""

    newest: int
    """The newest version of its tokens."""
    digest: str
    """In hex, as the log has it."""
    member: str
    lease: str


class Batches:
    """Makes the batches of a start. All ranks call `next` together."""

    def __init__(
        self, config: StageConfig, algorithm: Algorithm, parts: Parts, services: Services, folder: Path, job: Job
    ) -> None:
        self.config, self.algorithm, self.parts, self.services, self.job = config, algorithm, parts, services, job
        self.gate = Gate(parts.learner, None, config.rl, ())
        self.patience = Patience(services.news, job)
        self.ids = parts.train["id"]
        self.collector = Collector(config, self.ids, folder, job, services)
        self.refused = set[int]()
        """Positions whose groups were thrown away since the start, and so are played in it."""
        self.set_aside = parts.state.positions_set_aside
        """Positions that were set aside when the last batch was there."""

    def next(self, step: int, state: State) -> Batch | None:
        """The batch of `step`; None when it is time to stop. Raises ParityError, and RuntimeError for a broken grader.

        Each share is judged before anything is rejected or learned from. One that does not pass in the first batch of a
        start is thrown away and played anew: an update that a kill has taken back may have made weights of that version
        too, and a grader may have been mended. What was played anew in this start has to pass.
        """
        wanted, began, waited, refused = self.config.rl.prompts_per_step, time.monotonic(), 0.0, 0
        shares, comparisons, taken, kept = list[Share](), list[Comparison](), list[Ready](), list[int]()
        while len(shares) <= self.algorithm.resample and len(kept) < wanted:
            chosen = frozenset(one.position for one in taken)
            share, seconds = self._share(state, wanted - len(kept), len(taken), chosen)
            if share is None:
                return None
            waited, state = waited + seconds, state.joined(share.state)
            compared = self.gate.compare(share.mine, step, state.policy_version) if self._is_first(step) else None
            broken = broken_grader(share.mine, self.parts.step_files.terms)
            if broken or (compared and not compared.passes):
                state, refused = self._thrown(state, share), refused + len(share.taken)
                self._refuse(step, state.policy_version, broken, compared, {one.position for one in share.taken})
                continue
            slots = range(len(taken), len(taken) + len(share.taken))
            kept += with_signal(self.algorithm, share.mine, self.config.rl.samples_per_prompt, slots)
            taken += share.taken
            shares.append(share)
            comparisons += [compared] if compared else []
            if self.algorithm.resample:
                # What teaches nothing is done with at once: the window has to have room for the next round.
                state = state.done_with([taken[slot].position for slot in slots if slot not in kept], (), {})
                self.services.tell(state)
        self.patience.over()
        self.set_aside = state.positions_set_aside
        everything = Trajectories.joined([share.mine for share in shares]) if len(shares) > 1 else shares[0].mine
        # With nothing to learn from, the last round stands for the step: the update will leave it out.
        places = kept or list(range(len(taken) - len(shares[-1].taken), len(taken)))
        ranks = [rank for share in shares for rank in share.ranks]
        prompts = [self.ids[row_at(self.config.seed, o.position, len(self.ids))].as_py() for o in taken]
        metrics = self._metrics(state, shares, [taken[place] for place in places]) | {"groups_refused": refused}
        return Batch(
            kept=groups_in(everything, places) if self.algorithm.resample else everything,
            everything=everything, taken=taken, prompts=prompts, state=state,
            rows=self._rows(step, state, everything, list(zip(taken, ranks, prompts, strict=True)), places),
            metrics=metrics | (metrics_of(comparisons) if comparisons else {}),
            seconds_waiting=waited, seconds_agreeing=time.monotonic() - began - waited,
        )  # fmt: skip

    def look_ahead(self, batch: Batch) -> None:
        """Collect the next batch while `batch` is learned from."""
        state = replace(batch.state, policy_version=batch.state.policy_version + 1)
        chosen = frozenset(one.position for one in batch.taken)
        self.collector.begin(state, self.config.rl.prompts_per_step, 0, chosen)

    def close(self) -> None:
        """Collect nothing more."""
        self.collector.close()

    def _is_first(self, step: int) -> bool:
        return step == self.parts.first + 1

    def _refuse(self, step: int, version: int, broken: str, compared: Comparison | None, positions: set[int]) -> None:
        """Say why a share was thrown away; an error where an earlier start cannot have left it."""
        played_anew = positions <= self.refused
        self.refused |= positions
        if played_anew or not self._is_first(step):
            if broken:
                raise RuntimeError(f"step {step}: {broken}")
            assert compared
            self.gate.refuse(compared, version, f"rollouts that the actors have put for step {step}")
        if self.job.is_first:
            apart = f"they are {compared.ranks[:, 1].max():.1e} nats from the policy" if compared else ""
            print(f"rl: step {step}: groups are thrown away and played anew: {broken or apart}", flush=True)

    def _rows(
        self,
        step: int,
        state: State,
        everything: Trajectories,
        groups: Sequence[tuple[Ready, int, str]],
        places: Sequence[int],
    ) -> list[Logged]:
        """Of all `groups`, whose slots in `places` are learned from; the others have place -1."""
        facts = facts_of(everything, self.services.keeper.players([one.position for one, _, _ in groups]))
        learned = {slot: place for place, slot in enumerate(places)}
        return [
            Logged(
                step, learned.get(slot, REJECTED), one.position, one.attempt, prompt, rank, one.shard,
                state.policy_version, one.oldest, known.newest, one.samples, one.tokens,
                known.digest, known.member, known.lease,
            )
            for slot, ((one, rank, prompt), known) in enumerate(zip(groups, facts, strict=True))
        ]  # fmt: skip

    def _metrics(self, state: State, shares: Sequence[Share], taken: Sequence[Ready]) -> dict[str, float]:
        ages = [staleness(one.oldest, state.policy_version) for one in taken]
        metrics: dict[str, float] = {
            "staleness": sum(ages) / len(ages),
            "staleness_max": max(ages),
            "groups_stale": sum(share.stale for share in shares),
            "queue_depth": shares[0].there,
            "positions_set_aside": state.positions_set_aside,
        }
        if self.algorithm.resample:
            metrics |= {"rounds": len(shares), "groups_kept": len(taken) / sum(len(share.taken) for share in shares)}
        return metrics

    def _thrown(self, state: State, share: Share) -> State:
        """The state after all groups of the share were thrown away, to be played again; their shards know it.

        It is no fault of their prompts, and costs them no attempt.
        """
        state = state.refused({one.position: one.attempt + 1 for one in share.taken})
        self.services.tell(state)
        self.services.keeper.settle()
        return state

    def _share(
        self, state: State, missing: int, first_place: int, chosen: frozenset[int]
    ) -> tuple[Share | None, float]:
        """What was collected ahead, or else is now, and the seconds that it was waited for; None when it is to stop."""
        if self.collector.share is None:
            self.collector.begin(state, missing, first_place, chosen)
        began = time.monotonic()
        while not self.collector.wait(CHECK_SECONDS):
            self._waits(state.policy_version + 1, time.monotonic() - began)
        waited = time.monotonic() - began
        self.parts.budget.waited(waited)
        return self.collector.end(), waited

    def _waits(self, step: int, seconds: float) -> None:
        """Called again and again while groups for `step` are missing, now for so many seconds."""
        self.services.check()
        vain = self.collector.state.positions_set_aside - self.set_aside
        if vain > HOPELESS * window_of(self.config):
            why = "; ".join(sorted(set(self.services.news.reasons()))[:3]) or "rank 0 knows why"
            raise RuntimeError(
                f"{vain} prompts in a row could not be played and were set aside ({why}); mend that first"
            )
        message = self.patience.waits(self.collector.there, self.config.rl.prompts_per_step, seconds)
        if message:
            self.parts.log.waits(step, message)
        self.collector.stop = self.parts.budget.must_stop()


def facts_of(learned: Trajectories, players: Sequence[tuple[str, str]]) -> list[Facts]:
    """Of all groups of a batch, by slot. All ranks call it together.

    `learned` has the groups that this rank learns from, `players` actor and lease of those that its shard had, else "".
    """
    content: dict[int, tuple[int, str]] = {}
    for slot in np.unique(learned.groups).tolist():
        group = learned.pick(np.flatnonzero(learned.groups == slot))
        content[slot] = int(group.versions.max(initial=-1)), digest(group).hex()
    mine = content, {slot: player for slot, player in enumerate(players) if any(player)}
    everyones = [mine] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    contents = {slot: found for content, _ in everyones for slot, found in content.items()}
    played = {slot: player for _, played in everyones for slot, player in played.items()}
    return [Facts(*contents[slot], *played.get(slot, ("", ""))) for slot in range(len(players))]
