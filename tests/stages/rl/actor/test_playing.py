"""How episodes are streamed: slow environments, those that answer otherwise, and what is measured."""

import threading
import time
from concurrent.futures import Future
from typing import Any, cast

import pytest

from data.rows import Row
from stages.environments.base import Answer, Task
from stages.environments.processes import threads
from stages.rl.actor.beginnings import Beginnings
from stages.rl.actor.group import Group
from stages.rl.actor.rates import Meter
from stages.rl.config import RLConfig
from stages.rl.messages import Lease
from stages.rl.rollouts import Judge
from stages.rl.store.client import Store
from stages.rollout.config import SamplingConfig
from stages.rollout.episodes import Episodes
from stages.rollout.flight import AnotherAnswer, Begun, Played
from tests.stages.rollout.test_episodes import TOKENIZER, Talk, engine, start

SAMPLING = SamplingConfig(max_new_tokens=8, slots=8)


class Waiting(Talk):
    """Takes 50 ms for each turn, in which it computes nothing."""

    cpu_seconds = 1
    now = most = 0
    lock = threading.Lock()

    def _answer(self, task: Task, action: str) -> Any:
        with self.lock:
            Waiting.now += 1
            Waiting.most = max(Waiting.most, Waiting.now)
        time.sleep(0.05)
        with self.lock:
            Waiting.now -= 1
        return self.answer(task, action)


class Changed(Talk):
    """Answers each turn in another way than `Talk`."""

    def answer(self, task: Task, action: str) -> Answer:
        said = super().answer(task, action)
        return said._replace(observation="a" + said.observation) if said.observation else said


def test_a_slow_environment_is_asked_many_times_at_once_while_the_engine_generates() -> None:
    player = engine()
    player.start(SAMPLING)
    with threads(16) as pool:
        episodes = Episodes(player, TOKENIZER, Waiting([]), SAMPLING, pool)
        key, ended, both = 0, 0, 0
        while ended < 150:
            while len(episodes) < 48 and key < 150:
                episodes.add(key, start(key))
                key += 1
            both += episodes.in_flight > 0 and Waiting.now > 0
            ended += len(list(episodes.step()))
    assert Waiting.most > 4 and both > 10


def test_the_engine_is_full_though_the_environment_takes_50_ms_for_each_turn() -> None:
    player = engine()
    player.start(SAMPLING)
    with threads(100) as pool:
        episodes = Episodes(player, TOKENIZER, Waiting([]), SAMPLING, pool)
        key, ended, full, steps = 0, 0, 0, 0
        while ended < 500:
            while len(episodes) < 100:
                episodes.add(key, start(key))
                key += 1
            full, steps = full + (episodes.in_flight >= SAMPLING.slots), steps + 1
            ended += len(list(episodes.step()))
    assert full / steps > 0.95


def test_an_environment_for_which_the_engine_waits_is_told_of_once() -> None:
    player = engine()
    player.start(SAMPLING)
    with threads() as pool:
        episodes = Episodes(player, TOKENIZER, Talk([]), SAMPLING, pool)
        meter = Meter(player, episodes, 8)
        episodes.add(0, start(0))
        _all(episodes)
        assert episodes.answering > 0 and not meter.warning()
        episodes.answering += 20
        assert "has waited 20 s for the environment talk" in meter.warning() and not meter.warning()


def test_tokens_are_counted_as_the_engine_makes_them_and_its_time_is_its_own() -> None:
    player = engine()
    player.start(SAMPLING)
    with threads(16) as pool:
        episodes = Episodes(player, TOKENIZER, Waiting([]), SAMPLING, pool, budget=5)
        meter, told, began = Meter(player, episodes, 8), 0, time.monotonic()
        for key in range(20):
            episodes.add(key, start(key))
        played: list[Played | ValueError] = []
        while episodes:
            played += [one for _, one in episodes.step()]
            told += meter.report().tokens if len(played) % 3 == 0 else 0
        last = meter.report()
    assert told + last.tokens == sum(len(one.tokens) for one in played if isinstance(one, Played))
    assert 0 < episodes.seconds < time.monotonic() - began


def test_what_was_begun_elsewhere_is_counted_by_those_who_generated_it() -> None:
    player = engine()
    player.start(SAMPLING)
    with threads() as pool:
        episodes = Episodes(player, TOKENIZER, Talk([]), SAMPLING, pool, budget=3)
        episodes.add(0, start(0))
        half: Played | ValueError | None = None
        while episodes:
            ((_, half),) = list(episodes.step()) or [(0, None)]
        assert isinstance(half, Played) and half.is_interrupted
        meter = Meter(player, episodes, 8)
        episodes.add(1, half.start, Begun(half.completions, half.observations))
        played: Played | ValueError | None = None
        while episodes:
            ((_, played),) = list(episodes.step()) or [(0, None)]
    assert isinstance(played, Played) and meter.report().tokens == len(played.tokens) - len(half.tokens)


def test_an_environment_that_answers_otherwise_has_its_episode_begin_anew() -> None:
    player = engine()
    player.start(SAMPLING)
    with threads() as pool:
        first = Episodes(player, TOKENIZER, Talk([]), SAMPLING, pool)
        for key in range(20):
            first.add(key, start(key))
        several = next(one for one in _all(first).values() if len(one.completions) > 1)
        begun = Begun(several.completions, several.observations)
        second = Episodes(player, TOKENIZER, Changed([]), SAMPLING, pool)
        second.add(0, several.start, begun)
        ended: list[tuple[int, Played | ValueError]] = []
        while second:
            ended += list(second.step())
        ((_, error),) = ended
        assert isinstance(error, AnotherAnswer) and "answers the same turn in another way" in str(error)
        second.add(0, several.start)
        assert isinstance(_all(second)[0], Played)


def _all(episodes: Episodes) -> dict[int, Played]:
    found: dict[int, Played] = {}
    while episodes:
        for key, played in episodes.step():
            assert isinstance(played, Played)
            found[key] = played
    return found


def test_samples_whose_terms_are_still_computed_are_handed_back_as_not_ended() -> None:
    judge, task = Judge(RLConfig(sampling=SAMPLING), Talk([]), 64), start(3)
    one = Group.of(Lease(id="a", position=3, attempt=0), cast(Row, task.task), task.prompt, 7, 2)
    player = engine()
    player.start(SAMPLING)
    with threads() as pool:
        episodes = Episodes(player, TOKENIZER, Talk([]), SAMPLING, pool)
        for number in (0, 1):
            episodes.add(number, one.starts[number])
        for number, played in _all(episodes).items():
            one.playing.discard(number)
            one.grading[number] = Future()
            one.ended[number] = played, one.grading[number].result
    one.grading[0].set_result([1.0])
    assert one.is_whole and not one.is_graded
    half = one.half(judge)
    assert half is not None and half.limits.tolist()[0] > 0 and half.limits.tolist()[1] == 0
    other = Group.of(one.lease, cast(Row, task.task), task.prompt, 7, 2)
    other.go_on_with(half)
    assert set(other.kept) == {0} and set(other.begun) == {1}
    with threads() as pool:
        made, episodes = player.progress, Episodes(player, TOKENIZER, Talk([]), SAMPLING, pool)
        episodes.add(1, other.starts[1], other.begun[1])
        assert _all(episodes)[1].tokens == one.ended[1][0].tokens and player.progress == made


@pytest.mark.parametrize("there", [True, False])
def test_what_was_begun_is_fetched_beside_the_loop(tmp_path: Any, there: bool) -> None:
    gives_up = threading.Event()
    beginnings = Beginnings(Store(tmp_path, 60.0, gives_up.is_set))  # no shard has announced itself
    lease, began = Lease(id="a", position=0, attempt=0, partial=True), time.monotonic()
    beginnings.fetch(lease)
    assert not beginnings.arrived() and len(beginnings) == 1 and time.monotonic() < began + 30
    if there:
        beginnings.forget("a")
    gives_up.set()
    while beginnings:
        for got, future in beginnings.arrived():
            assert got == lease
            with pytest.raises(ConnectionError):
                future.result()
    beginnings.close()
