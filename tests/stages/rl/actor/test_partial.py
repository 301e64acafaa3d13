"""Episodes that are halted, laid down as trajectories, and gone on with by another player."""

from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np
import torch

from data.packing import pack_masked
from data.rows import Row
from stages.environments.processes import threads
from stages.rl.actor.group import Group
from stages.rl.config import RLConfig
from stages.rl.messages import Lease
from stages.rl.rollouts import Judge
from stages.rollout.config import SamplingConfig
from stages.rollout.episodes import Episodes
from stages.rollout.flight import Played
from stages.trainer.policy import Policy
from tests.stages.rollout.test_episodes import TOKENIZER, Slow, Talk, engine, play, sequence, start

SAMPLING = SamplingConfig(max_new_tokens=8, slots=8)
LEASE = Lease(id="a", position=3, attempt=0)


def group() -> Group:
    first = start(3)
    return Group.of(LEASE, cast(Row, first.task), first.prompt, 7, 8)


def begin(player: Episodes, one: Group) -> None:
    for number in sorted(one.playing):
        player.add(number, one.starts[number], one.begun.get(number))


def hear(one: Group, judge: Judge, number: int, played: Played | ValueError) -> None:
    assert isinstance(played, Played)
    one.playing.discard(number)
    if played.is_interrupted:
        one.interrupted[number] = played
    else:
        one.ended[number] = played, lambda: judge.terms_of(played)


def episodes(pool: ThreadPoolExecutor, kind: type[Talk] = Talk, budget: int | None = None) -> Episodes:
    player = engine()
    player.start(SAMPLING)
    return Episodes(player, TOKENIZER, kind([]), SAMPLING, pool, budget=budget)


def test_a_half_played_group_is_finished_by_others_and_loses_no_token() -> None:
    judge, one, told = Judge(RLConfig(sampling=SAMPLING), Talk([]), 64), group(), 0
    before: dict[int, list[int]] = {}
    with threads() as pool:
        for round in range(30):
            player = episodes(pool, budget=3)
            player.engine.version = round
            begin(player, one)
            while player:
                for number, played in player.step():
                    hear(one, judge, number, played)
            if one.is_whole:
                break
            half = one.half(judge)
            assert half is not None
            for index, seed in enumerate(half.seeds.tolist()):
                tokens = half.sequence(index)[0].tolist()
                assert tokens[: len(before.get(seed, []))] == before.get(seed, [])
                before[seed], told = tokens, told + 1
            one = group()
            one.go_on_with(half)
    assert one.is_whole and told > 8
    table = one.table(judge)
    assert len(table) == 8 and table.seeds.tolist() == [each.seed for each in one.starts] and table.graded.all()
    assert max(table.turns) == 3 and len(set(table.versions[table.mask].tolist())) > 3
    for index, seed in enumerate(table.seeds.tolist()):
        tokens = table.sequence(index)[0].tolist()
        assert tokens[: len(before.get(seed, []))] == before.get(seed, [])
    with torch.no_grad():
        found = Policy(engine().model)(pack_masked([table.sequence(index) for index in range(8)])).logprobs
    np.testing.assert_allclose(table.logprobs[table.mask], found.numpy(), atol=1e-5)


def test_halted_at_any_moment_it_goes_on_with_what_was_said() -> None:
    judge = Judge(RLConfig(sampling=SAMPLING), Talk([]), 64)
    for steps in range(6):
        one = group()
        with threads() as pool:
            player = episodes(pool, Slow)
            begin(player, one)
            for _ in range(steps):
                for number, played in player.step():
                    hear(one, judge, number, played)
            halted = player.halt(list(one.playing))
            for number, played in halted.items():
                one.playing.discard(number)
                one.interrupted[number] = played
            half = one.half(judge)
            other = group()
            if half is not None:
                other.go_on_with(half)
            player = episodes(pool, Slow)
            begin(player, other)
            while player:
                for number, played in player.step():
                    hear(other, judge, number, played)
        table = other.table(judge)
        assert len(table) == 8 and (table.completion_lengths > 0).all()
        assert half is None or all(
            any(seq[: len(h)] == h for seq in (table.sequence(i)[0].tolist() for i in range(8)))
            for h in (half.sequence(i)[0].tolist() for i in range(len(half)))
        )


def test_streamed_episodes_are_those_of_the_thin_loop() -> None:
    starts = [start(number) for number in range(20)]
    found: dict[int, Played] = {}
    with threads() as pool:
        player = episodes(pool)
        for key, each in enumerate(starts):
            player.add(key, each)
        while player:
            for key, played in player.step():
                assert isinstance(played, Played)
                found[key] = played
    whole = play(engine(), starts)
    assert [sequence(found[key]) for key in range(20)] == [sequence(each) for each in whole]
