"""The groups that an actor plays: from a lease to samples that have ended, and been graded."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
from transformers import PreTrainedTokenizerFast

from data.trajectories import Trajectories
from stages.environments.base import BaseEnvironment
from stages.rl.actor.group import Group, begun_again
from stages.rl.config import StageConfig
from stages.rl.messages import Lease
from stages.rl.prompts import draw_prompts
from stages.rl.rollouts import Judge
from stages.rollout.engine import Engine
from stages.rollout.episodes import Episodes, encode_first
from stages.rollout.flight import AnotherAnswer, Played


class Playing:
    """All that is played. Its engine is given new weights by others, between two steps."""

    def __init__(
        self,
        config: StageConfig,
        engine: Engine,
        tokenizer: PreTrainedTokenizerFast,
        environment: BaseEnvironment,
        train: pa.Table,
        pool: ThreadPoolExecutor,
    ) -> None:
        """`train` is the split that prompts are drawn from; slow environments and terms compute in `pool`."""
        self.config, self.engine, self.tokenizer, self.train, self.pool = config, engine, tokenizer, train, pool
        self.judge = Judge(config.rl, environment, engine.context)
        sampling, budget = config.rl.sampling, config.rl.asynchronous.partial_tokens
        engine.start(sampling)
        self.episodes = Episodes(engine, tokenizer, environment, sampling, pool, budget=budget)
        self._groups: dict[str, Group] = {}
        self._played: dict[str, Group] = {}
        """All said, while terms of their reward are still computed."""
        self._keys: dict[int, tuple[str, int]] = {}
        """(Lease, number of the sample) of what the engine plays."""
        self._next_key = 0

    def __len__(self) -> int:
        """Groups whose samples are played."""
        return len(self._groups)

    @property
    def num_played(self) -> int:
        """Groups whose samples have ended, and wait for their rewards."""
        return len(self._played)

    def begin(self, lease: Lease, half: Trajectories | None) -> None:
        """Play the prompt of `lease`, of which others have played `half`. Raises ValueError when it cannot be."""
        try:
            self._add(lease, half)
        except ValueError:
            self.drop(lease.id)
            raise

    def step(self) -> list[tuple[Lease, str]]:
        """Let the engine generate for a while; the groups that could not be played, and why."""
        failed: list[tuple[Lease, str]] = []
        for key, played in list(self.episodes.step()):
            lease, number = self._keys.pop(key, ("", 0))
            group = self._groups.get(lease)
            if group is None:
                continue  # it was dropped
            if isinstance(played, AnotherAnswer):
                del group.begun[number]
                self._go_on(group, number)
            elif isinstance(played, ValueError):
                self.drop(lease)
                failed.append((group.lease, str(played)))
            else:
                self._heard(group, number, played)
        return failed

    def graded(self) -> list[Group]:
        """Those that are over, each told once: whole, or played as far as it may be here."""
        graded = [lease for lease, group in self._played.items() if group.is_graded]
        return [self._played.pop(lease) for lease in graded]

    def drop(self, lease: str) -> None:
        """Others have it now."""
        self._played.pop(lease, None)
        if self._groups.pop(lease, None) is None:
            return
        keys = [key for key, (of, _) in self._keys.items() if of == lease]
        self.episodes.halt(keys)
        for key in keys:
            del self._keys[key]

    def halt(self) -> list[Group]:
        """Play no more; all that there is, half played or not yet graded."""
        for key, played in self.episodes.halt(self._keys).items():
            lease, number = self._keys.pop(key)
            self._groups[lease].interrupt(number, played)
        groups = [*self._played.values(), *self._groups.values()]
        self._played, self._groups = {}, {}
        return groups

    @contextmanager
    def paused(self) -> Generator[None]:
        """The engine is free for something else, and then goes on with what it played."""
        halted = self.episodes.halt(self._keys)
        yield
        self.engine.start(self.config.rl.sampling)
        for key, played in halted.items():
            self.episodes.add(key, played.start, begun_again(played))

    def _add(self, lease: Lease, half: Trajectories | None) -> None:
        seed, count = self.config.seed, self.config.rl.samples_per_prompt
        (row,), _ = draw_prompts(seed, self.train["id"], lease.position, 1, frozenset())
        task = self.train.slice(row, 1).to_pylist()[0]
        prompt = encode_first(self.engine, self.tokenizer, task["id"], task["prompt"])
        group = self._groups[lease.id] = Group.of(lease, task, prompt, seed, count)
        if half is not None:
            group.go_on_with(half)
        for number in sorted(group.playing):
            self._go_on(group, number)
        self._look(group)

    def _go_on(self, group: Group, number: int) -> None:
        key, self._next_key = self._next_key, self._next_key + 1
        self._keys[key] = group.lease.id, number
        self.episodes.add(key, group.starts[number], group.begun.get(number))

    def _heard(self, group: Group, number: int, played: Played) -> None:
        if played.is_interrupted:
            group.interrupt(number, played)
        elif self.judge.slow:
            group.grading[number] = self.pool.submit(self.judge.terms_of, played)
            group.end(number, played, group.grading[number].result)
        else:
            group.end(number, played, partial(self.judge.terms_of, played))
        self._look(group)

    def _look(self, group: Group) -> None:
        if not group.playing:
            self._played[group.lease.id] = self._groups.pop(group.lease.id)
