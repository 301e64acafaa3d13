"""Requests come, end and are cancelled at any time; weights change under them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Request, generate
from stages.rollout.torch import engine as engine_module
from stages.rollout.torch import rows
from stages.rollout.torch.engine import TorchEngine

NEVER = -1
"""As the end token: only the length ends a completion."""
Tiny = Callable[..., PreTrainedModel]
Logprobs = Callable[..., npt.NDArray[np.float32]]


@pytest.fixture(autouse=True)
def few_tokens_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "TOKENS_PER_STEP", 4)


def drain(engine: TorchEngine, count: int) -> dict[int, Completion]:
    ended: dict[int, Completion] = {}
    while len(ended) < count:
        for key, completion in engine.step():
            assert key not in ended
            ended[key] = completion
    assert engine.step() == []
    return ended


def test_requests_that_join_others_in_flight_get_what_they_would_alone(tiny: Tiny) -> None:
    engine = TorchEngine(tiny(), NEVER)
    asked = {key: Request([1, 3 + key, 4][: 1 + key % 3], key, 5 + key) for key in range(9)}
    sampling = SamplingConfig(slots=8)
    alone = {key: generate(engine, [request], sampling)[0] for key, request in asked.items()}
    engine.start(sampling)
    ended: dict[int, Completion] = {}
    for key, request in asked.items():
        engine.add(key, request)
        ended.update(engine.step())
    ended.update(drain(engine, len(asked) - len(ended)))
    assert {key: completion.tokens for key, completion in ended.items()} == {
        key: completion.tokens for key, completion in alone.items()
    }


def test_a_step_is_short_and_gives_what_has_ended(tiny: Tiny) -> None:
    engine = TorchEngine(tiny(), NEVER)
    engine.start(SamplingConfig(max_new_tokens=30))
    engine.add(7, Request([1], 0))
    engine.add(8, Request([1], 0, 2))
    assert [key for key, _ in engine.step()] == [8]
    steps = 0
    while not (ended := engine.step()):
        steps += 1
    assert steps >= 5
    assert [key for key, _ in ended] == [7]


def test_cancelled_requests_give_what_they_have(tiny: Tiny, logprobs_of: Logprobs) -> None:
    model = tiny()
    engine = TorchEngine(model, NEVER)
    engine.start(SamplingConfig(max_new_tokens=30, slots=2))
    for key in range(4):
        engine.add(key, Request([1, 3 + key], key))
    assert engine.step() == []
    engine.cancel([1, 3, 99])
    cancelled = dict(engine.step())
    assert {key: completion.reason for key, completion in cancelled.items()} == {1: "cancelled", 3: "cancelled"}
    assert len(cancelled[1].tokens) == 5
    assert cancelled[3].tokens == []
    np.testing.assert_allclose(cancelled[1].logprobs, logprobs_of(model, [1, 4], cancelled[1].tokens), atol=1e-5)
    rest = drain(engine, 2)
    assert [rest[key].reason for key in (0, 2)] == ["length", "length"]
    np.testing.assert_allclose(rest[2].logprobs, logprobs_of(model, [1, 5], rest[2].tokens), atol=1e-5)


def test_tokens_after_an_update_carry_the_new_version_and_are_the_new_weights(tiny: Tiny) -> None:
    model, other = tiny(), tiny(seed=1)
    weights = {name: tensor.clone() for name, tensor in model.named_parameters()}
    engine = TorchEngine(model, NEVER)
    engine.update(None, 3)
    request = Request([1, 4, 5], 0)
    before = generate(engine, [request], SamplingConfig(max_new_tokens=12))[0]
    engine.add(0, request)
    assert engine.step() == []
    engine.update(other.named_parameters(), 4)
    mixed = drain(engine, 1)[0]
    assert mixed.versions.tolist() == [3] * 5 + [4] * 7
    assert mixed.tokens[:5] == before.tokens[:5]
    assert np.array_equal(mixed.logprobs[:5], before.logprobs[:5])
    assert not np.allclose(mixed.logprobs[5:], before.logprobs[5:], atol=1e-2)
    engine.update(weights.items(), 5)
    after = generate(engine, [request], SamplingConfig(max_new_tokens=12))[0]
    assert after.tokens == before.tokens and after.versions.tolist() == [5] * 12


def test_the_cache_grows_with_rows_and_positions(
    tiny: Tiny, logprobs_of: Logprobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "POSITIONS", 8)
    model = tiny()
    engine = TorchEngine(model, NEVER)
    engine.start(SamplingConfig(max_new_tokens=55))
    ended: dict[int, Completion] = {}
    for key in range(6):
        engine.add(key, Request([1, 3 + key], key))
        ended.update(engine.step())
    engine.add(6, Request([1] * 40, 6))
    ended.update(drain(engine, 7 - len(ended)))
    for key, completion in ended.items():
        prompt = [1] * 40 if key == 6 else [1, 3 + key]
        np.testing.assert_allclose(completion.logprobs, logprobs_of(model, prompt, completion.tokens), atol=1e-5)


def test_few_samples_move_to_the_first_rows_and_stay_the_same(tiny: Tiny, logprobs_of: Logprobs) -> None:
    model = tiny()
    engine = TorchEngine(model, NEVER)
    engine.start(SamplingConfig(slots=16))
    for key in range(16):
        engine.add(key, Request([1, 3 + key], key, 3 + 2 * key, session=key if key < 5 else None))
    for key, completion in drain(engine, 16).items():
        np.testing.assert_allclose(completion.logprobs, logprobs_of(model, [1, 3 + key], completion.tokens), atol=1e-5)
    before = engine.prefilled
    for key in range(5):
        kept = engine._rows.kept[key].tokens  # pyright: ignore[reportPrivateUsage]
        engine.add(key, Request([*kept, 9], key, 4, session=key))
    for key, completion in drain(engine, 5).items():
        prompt = engine._rows.kept[key].tokens[: -len(completion.tokens) + 1]  # pyright: ignore[reportPrivateUsage]
        np.testing.assert_allclose(completion.logprobs, logprobs_of(model, prompt, completion.tokens), atol=1e-5)
    assert engine.prefilled - before == 5


def test_a_long_prompt_of_a_group_is_prefilled_once_also_when_slots_fall_free_one_by_one(
    tiny: Tiny, logprobs_of: Logprobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "SHARED_PROMPT", 8)
    model = tiny()
    engine = TorchEngine(model, NEVER)
    prompt = [1, *range(3, 23)]
    completions = generate(engine, [Request(prompt, seed, 3 + 2 * seed) for seed in range(8)], SamplingConfig(slots=3))
    assert engine.prefilled == len(prompt) + 5
    for completion in completions:
        np.testing.assert_allclose(completion.logprobs, logprobs_of(model, prompt, completion.tokens), atol=1e-5)


def test_what_is_asleep_has_no_cache_and_wakes_to_generate_the_same(tiny: Tiny) -> None:
    engine = TorchEngine(tiny(), NEVER)
    before = generate(engine, [Request([1, 5], 0)], SamplingConfig())[0]
    engine.sleep()
    assert engine._rows.slots.rows == 0  # pyright: ignore[reportPrivateUsage]
    engine.wake()
    engine.update(None, 0)
    assert generate(engine, [Request([1, 5], 0)], SamplingConfig())[0].tokens == before.tokens


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 12), st.integers(1, 9)),
        st.tuples(st.just("turn"), st.integers(0, 2), st.integers(1, 9)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("release"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("update"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@given(ACTIONS, st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_any_order_of_calls_ends_each_request_once_with_its_reason_length_and_versions(
    tiny: Tiny, actions: list[tuple[str, int, int]], slots: int
) -> None:
    engine = TorchEngine(tiny(), eos=2)
    engine.start(SamplingConfig(slots=slots))
    asked: dict[int, Request] = {}
    cancelled: set[int] = set()
    ended: dict[int, Completion] = {}

    def step() -> list[Any]:
        done = engine.step()
        for key, completion in done:
            assert key not in ended
            ended[key] = completion
        return done

    for action, first, second in actions:
        if action in ("add", "turn"):
            key = len(asked)
            last = [k for k, request in asked.items() if request.session == first and k in ended]
            if action == "turn" and last:
                prompt = [*asked[last[-1]].prompt, *ended[last[-1]].tokens, 7]
            else:
                prompt = [1, *range(3, 3 + first)]
            asked[key] = Request(prompt[:50], key, second, session=first if action == "turn" else None)
            engine.add(key, asked[key])
        elif action == "step":
            step()
        elif action == "cancel":
            engine.cancel([first])
            cancelled.add(first)
        elif action == "release":
            engine.release([first])
        else:
            engine.update(None, engine.version + 1)
    while len(ended) < len(asked):
        step()
    assert step() == []
    for key, completion in ended.items():
        limit = asked[key].max_new_tokens
        assert limit is not None
        count = len(completion.tokens)
        assert count == len(completion.logprobs) == len(completion.versions)
        assert (np.diff(completion.versions) >= 0).all()
        assert (completion.reason == "stop") == (count > 0 and completion.tokens[-1] == 2)
        assert count == limit if completion.reason == "length" else count <= limit
        assert completion.reason != "cancelled" or key in cancelled
        assert np.isfinite(completion.logprobs).all()
    assert torch.is_grad_enabled()
