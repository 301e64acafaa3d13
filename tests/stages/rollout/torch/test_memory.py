"""Keys and values within the memory that there is for them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Request, generate
from stages.rollout.torch import cache, rows
from stages.rollout.torch.engine import TorchEngine

EOS = 2
Tiny = Callable[..., PreTrainedModel]
EACH = 2 * 2 * 2 * 8 * 4
"""Bytes of a position: keys and values, layers, heads, head size, float32."""
SIZES = ((4, 9), (2, 5), (20, 30), (1, 3), (12, 40), (3, 20), (7, 8), (20, 6), (5, 50))
REQUESTS = [Request([1, *range(3, 3 + length)], seed, most) for seed, (length, most) in enumerate(SIZES)]


def give(monkeypatch: pytest.MonkeyPatch, positions: int) -> list[int]:
    """Memory for so many positions; returns the list of how many the cache had each time it grew."""
    monkeypatch.setattr(rows, "memory_of", lambda device: 2 * positions * EACH)  # pyright: ignore
    had: list[int] = []
    grow = cache.SlotCache.grow

    def noted(self: cache.SlotCache, *sizes: int) -> None:
        grow(self, *sizes)
        had.append(self.keys[0].shape[0] * self.positions)
        assert self.bytes_each == EACH

    monkeypatch.setattr(cache.SlotCache, "grow", noted)
    return had


@pytest.mark.parametrize("positions", [60, 100, 150, 333])
def test_what_memory_has_no_room_for_waits_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, positions: int, tiny: Tiny
) -> None:
    model, sampling = tiny(), SamplingConfig(slots=8)
    usual = generate(TorchEngine(model, EOS), REQUESTS, sampling)
    monkeypatch.setattr(rows, "POSITIONS", 4)
    had = give(monkeypatch, positions)
    found = generate(TorchEngine(model, EOS, memory_share=0.5), REQUESTS, sampling)
    assert [completion.tokens for completion in found] == [completion.tokens for completion in usual]
    assert max(had) <= positions


@pytest.mark.parametrize("positions", [64, 130, 260])
def test_turns_go_on_within_the_memory(monkeypatch: pytest.MonkeyPatch, positions: int, tiny: Tiny) -> None:
    model = tiny()

    def play() -> dict[int, list[list[int]]]:
        engine = TorchEngine(model, EOS, memory_share=0.5)
        engine.start(SamplingConfig(max_new_tokens=8, slots=5))
        prompts = {key: [1, *range(3, 5 + key)] for key in range(12)}
        said: dict[int, list[list[int]]] = {key: [] for key in prompts}
        for key, prompt in prompts.items():
            engine.add(key, Request(prompt, key, session=key))
        while any(len(turns) < 3 for turns in said.values()):
            for key, completion in engine.step():
                said[key].append(completion.tokens)
                prompts[key] += [*completion.tokens, 3]
                if len(said[key]) < 3:
                    engine.add(key, Request(prompts[key], 100 * len(said[key]) + key, session=key))
        return said

    usual = play()
    monkeypatch.setattr(rows, "POSITIONS", 4)
    had = give(monkeypatch, positions)
    assert play() == usual
    assert max(had) <= positions


def test_a_long_turn_of_the_last_session_moves_to_the_few_rows_that_fit(
    monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    model = tiny()

    def play() -> tuple[list[int], int]:
        engine = TorchEngine(model, -1, memory_share=0.5)
        engine.start(SamplingConfig(max_new_tokens=4, slots=6))
        for key in range(6):
            engine.add(key, Request([1, 3 + key], key, session=key))
        first: dict[int, list[int]] = {}
        while len(first) < 6:
            first |= {key: completion.tokens for key, completion in engine.step()}
        before = engine.prefilled
        engine.add(6, Request([1, 8, *first[5], 3], 6, max_new_tokens=40, session=5))
        while not (ended := engine.step()):
            pass
        return ended[0][1].tokens, engine.prefilled - before

    usual = play()
    assert usual[1] == 2  # the rest was there
    monkeypatch.setattr(rows, "POSITIONS", 4)
    had = give(monkeypatch, 60)
    assert play() == usual
    assert max(had) <= 60


def test_a_request_that_does_not_fit_alone_is_refused_with_its_sizes_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    give(monkeypatch, 50)
    engine = TorchEngine(tiny(), EOS, memory_share=0.5)
    with pytest.raises(ValueError, match=r"request 2: with 21 tokens .* 30 new .*GiB.* raise engine.memory_share"):
        generate(engine, REQUESTS[:3], SamplingConfig())
    assert generate(engine, REQUESTS[:1], SamplingConfig())[0].tokens


def test_rows_that_go_on_are_gathered_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch, tiny: Tiny) -> None:
    model, prompt = tiny(), [1, *range(3, 23), *range(3, 23)]
    many = [Request(prompt, seed, 20) for seed in range(12)]
    monkeypatch.setattr(rows, "SHARED_PROMPT", 8)
    sampling = SamplingConfig(slots=8)
    usual = generate(TorchEngine(model, EOS), many, sampling)
    seen: list[torch.Size] = []
    of = cache.ExtendContext.of

    def noted(*arguments: Any) -> cache.ExtendContext:
        context = of(*arguments)
        seen.append(context.seen.shape)
        return context

    monkeypatch.setattr(cache.ExtendContext, "of", noted)
    monkeypatch.setattr(rows, "SEEN_TOKENS", 100)
    found = generate(TorchEngine(model, EOS), many, sampling)
    assert [completion.tokens for completion in found] == [completion.tokens for completion in usual]
    assert seen and max(shape[0] * shape[-1] for shape in seen) <= 100
