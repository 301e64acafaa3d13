"""The in-process engine on a real vLLM, against transformers."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Request, generate
from stages.rollout.torch.engine import TorchEngine
from stages.rollout.vllm import weights
from stages.rollout.vllm.engine import NO_WEIGHTS, VllmEngine
from stages.rollout.vllm.platform import CPU_BLOCK
from stages.trainer import attention

SLOTS = 16
LIMIT = 1e-4
LONG = SamplingConfig(max_new_tokens=60)
"""Long enough for a request to be in flight for a while."""
END = 2

Make = Callable[..., PreTrainedModel]
Gap = Callable[..., float]


@pytest.fixture(scope="module")
def engine(make_model: Make, tokenizer: PreTrainedTokenizerFast) -> Iterator[VllmEngine]:
    """One vLLM for all tests; each gives it the weights that it needs."""
    engine = VllmEngine(make_model(0).config, tokenizer, slots=SLOTS)
    yield engine
    engine.close()


def ask(count: int, *prompt: int) -> list[Request]:
    return [Request([1, *(prompt or (5, 6, 7))], seed) for seed in range(count)]


def collect(engine: VllmEngine, count: int) -> dict[int, Completion]:
    ended: dict[int, Completion] = {}
    while len(ended) < count:
        ended.update(engine.step())
    return ended


def test_logprobs_are_those_of_transformers_before_and_after_an_update(
    engine: VllmEngine, make_model: Make, gap: Gap
) -> None:
    for version in (1, 2):
        model = make_model(version)
        engine.update(model.named_parameters(), version)
        for temperature in (1.0, 0.7):
            sampling = SamplingConfig(max_new_tokens=20, temperature=temperature)
            completions = generate(engine, ask(20), sampling)
            assert max(gap(model, *pair, temperature) for pair in zip(ask(20), completions, strict=True)) < LIMIT
            assert all((completion.versions == version).all() for completion in completions)


def test_an_update_without_the_guard_leaves_a_tied_head_behind(
    engine: VllmEngine, make_model: Make, gap: Gap, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.update(make_model(1).named_parameters(), 1)
    model = make_model(2)
    with monkeypatch.context() as without:
        without.setattr(weights, "repack_head", lambda model: None)
        engine.update(model.named_parameters(), 2)
    assert gap(model, ask(1)[0], generate(engine, ask(1), LONG)[0]) > 0.5
    engine.update(model.named_parameters(), 2)
    assert gap(model, ask(1)[0], generate(engine, ask(1), LONG)[0]) < LIMIT


def test_greedy_gives_the_untempered_logprobs_and_the_torch_engines_tokens(
    engine: VllmEngine, make_model: Make, tokenizer: PreTrainedTokenizerFast, gap: Gap
) -> None:
    model = make_model(3)
    engine.update(model.named_parameters(), 1)
    hot = SamplingConfig(max_new_tokens=30, temperature=3.0)
    (answer,) = generate(engine, ask(1), hot, greedy=True)
    assert gap(model, ask(1)[0], answer) < LIMIT
    assert answer.tokens == generate(torch_engine(model, tokenizer), ask(1), hot, greedy=True)[0].tokens


def test_noise_strikes_where_it_does_in_the_torch_engine(
    engine: VllmEngine, make_model: Make, tokenizer: PreTrainedTokenizerFast, gap: Gap
) -> None:
    model = make_model(4)
    engine.update(model.named_parameters(), 1)
    sampling = SamplingConfig(max_new_tokens=30)
    ours = generate(engine, ask(8), sampling, greedy=True, noise=0.2)
    theirs = generate(torch_engine(model, tokenizer), ask(8), sampling, greedy=True, noise=0.2)
    assert [completion.tokens for completion in ours] == [completion.tokens for completion in theirs]
    assert max(gap(model, *pair) for pair in zip(ask(8), ours, strict=True)) < LIMIT
    assert ours[0].tokens != generate(engine, ask(1), sampling, greedy=True)[0].tokens


def torch_engine(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> TorchEngine:
    ours = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), attn_implementation=attention.NAME).eval()
    ours.load_state_dict(model.state_dict())
    return TorchEngine(ours, END, tokenizer.all_special_ids)


def test_each_token_has_the_version_that_made_it(engine: VllmEngine, make_model: Make) -> None:
    engine.update(make_model(1).named_parameters(), 7)
    engine.start(SamplingConfig(max_new_tokens=200))
    for key, request in enumerate(ask(8)):
        engine.add(key, request)
    ended = dict(pair for _ in range(5) for pair in engine.step())
    engine.update(make_model(2).named_parameters(), 8)
    ended |= collect(engine, 8 - len(ended))
    mixed = [completion.versions for completion in ended.values() if len(completion.tokens) > 5]
    assert mixed
    assert all((versions[:5] == 7).all() and (versions[5:] == 8).all() for versions in mixed)


def test_keys_and_values_of_old_weights_are_never_used_again(engine: VllmEngine, make_model: Make, gap: Gap) -> None:
    prompt = [5 + place % 10 for place in range(96)]
    engine.update(make_model(1).named_parameters(), 1)
    engine.start(SamplingConfig(max_new_tokens=100))
    engine.add(0, Request(prompt, 0))
    engine.step()
    model = make_model(2)
    engine.update(model.named_parameters(), 2)
    engine.add(1, Request(prompt, 1, 4))  # while the other still holds blocks of this very prompt
    ended = collect(engine, 2)
    assert gap(model, Request(prompt, 1), ended[1]) < LIMIT


def test_the_same_seed_gives_the_same_tokens_whatever_its_neighbours(engine: VllmEngine, make_model: Make) -> None:
    engine.update(make_model(1).named_parameters(), 1)
    together = generate(engine, ask(SLOTS), LONG)
    alone = generate(engine, ask(SLOTS)[3:4], LONG)
    assert together[3].tokens == alone[0].tokens
    assert len({tuple(completion.tokens) for completion in together}) > SLOTS // 2


def test_prompts_that_are_more_tokens_than_one_step_takes(engine: VllmEngine, make_model: Make, gap: Gap) -> None:
    model = make_model(1)
    engine.update(model.named_parameters(), 1)
    requests = [Request([1, 5 + seed % 7, seed // 7, *[6, 7, 8] * 70], seed) for seed in range(SLOTS)]
    completions = generate(engine, requests, SamplingConfig(max_new_tokens=4))
    assert max(gap(model, *pair) for pair in zip(requests, completions, strict=True)) < LIMIT


def test_a_stop_string_ends_a_completion_and_stays_in_it(
    engine: VllmEngine, make_model: Make, tokenizer: PreTrainedTokenizerFast
) -> None:
    engine.update(make_model(1).named_parameters(), 1)
    free = generate(engine, ask(SLOTS), LONG)
    stop = tokenizer.decode(free[0].tokens[3:5])
    for seed, completion in enumerate(generate(engine, ask(SLOTS), LONG.model_copy(update={"stop": (stop,)}))):
        text = tokenizer.decode(completion.tokens)
        assert completion.tokens == free[seed].tokens[: len(completion.tokens)]
        assert stop not in text[:-1]
        assert (completion.reason == "stop") == (text.endswith(stop) or completion.tokens[-1] == END)


def test_a_stop_token_ends_a_completion_and_stays_in_it(engine: VllmEngine, make_model: Make) -> None:
    engine.update(make_model(1).named_parameters(), 1)
    token = generate(engine, ask(1), LONG)[0].tokens[4]
    (stopped,) = generate(engine, ask(1), LONG.model_copy(update={"stop_tokens": (token,)}))
    assert stopped.tokens[-1] == token and token not in stopped.tokens[:-1]
    assert stopped.reason == "stop"


def test_a_completion_ends_at_its_own_limit_at_the_samplings_and_at_the_context(
    engine: VllmEngine, make_model: Make
) -> None:
    engine.update(silenced(make_model(1)), 1)
    long = Request([5] * 250, 0)
    requests = [Request([5, 6], 0, 3), Request([5, 6], 0), long]
    completions = generate(engine, requests, SamplingConfig(max_new_tokens=9))
    assert [len(completion.tokens) for completion in completions] == [3, 9, 6]
    assert {completion.reason for completion in completions} == {"length"}


def silenced(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights with which the end token hardly ever comes: its tied embedding is that of another token."""
    for name, tensor in model.named_parameters():
        yield name, tensor.detach() * 0 if name == "model.norm.weight" else tensor


def test_a_cancelled_request_gives_what_it_has(engine: VllmEngine, make_model: Make, gap: Gap) -> None:
    model = make_model(1)
    engine.update(model.named_parameters(), 1)
    engine.start(SamplingConfig(max_new_tokens=200, slots=2))
    for key, request in enumerate(ask(4)):
        engine.add(key, request)
    ended = dict(pair for _ in range(3) for pair in engine.step())
    engine.cancel([0, 1, 2, 3, 99])
    ended |= dict(engine.step())
    assert set(ended) == {0, 1, 2, 3}
    cancelled = [key for key, completion in ended.items() if completion.reason == "cancelled"]
    assert {2, 3} <= set(cancelled)
    assert gap(model, ask(1)[0], ended[0]) < LIMIT and len(ended[0].tokens) <= 3
    assert ended[3].tokens == [] and ended[3].logprobs.shape == ended[3].versions.shape == (0,)
    assert engine.step() == []


def test_a_turn_begins_with_the_keys_and_values_of_the_turn_before(engine: VllmEngine, make_model: Make) -> None:
    engine.update(silenced(make_model(1)), 1)
    first = Request([5 + place % 9 for place in range(70)], 0, 60, session=4)
    (answer,) = generate(engine, [first], LONG)
    prompt = [*first.prompt, *answer.tokens, 9, 9]
    before = engine.reused
    generate(engine, [Request(prompt, 1, 1, session=4)], LONG)
    assert engine.reused - before >= len(first.prompt) + len(answer.tokens) - CPU_BLOCK
    engine.release([4])


@pytest.mark.parametrize("length", [0, 256])
def test_a_prompt_without_room_is_refused(engine: VllmEngine, length: int) -> None:
    engine.start(LONG)
    with pytest.raises(ValueError, match=f"request 3: the prompt has {length} tokens, but the model's context is 256"):
        engine.add(3, Request([5] * length, 0))


def test_wrong_weights_are_refused_and_right_ones_are_taken_after_them(
    engine: VllmEngine, make_model: Make, gap: Gap
) -> None:
    model = make_model(1)
    right = dict(model.named_parameters())
    first = next(iter(right))
    for wrong, words in (
        (right | {"model.extra.weight": right[first]}, "model.extra.weight is not in the engine's model"),
        (right | {first: right[first][1:]}, "the policy's weight is"),
        ({name: right[name] for name in right if name != first}, "lack ['model.embed_tokens.weight']"),
    ):
        with pytest.raises(ValueError) as error:
            engine.update(wrong.items(), 5)
        assert words in str(error.value)
        assert engine.version == NO_WEIGHTS
    engine.update(right.items(), 5)
    assert gap(model, ask(1)[0], generate(engine, ask(1), LONG)[0]) < LIMIT


def test_it_is_ready_again_after_sleep_wake_and_update(engine: VllmEngine, make_model: Make, gap: Gap) -> None:
    model = make_model(1)
    engine.update(model.named_parameters(), 1)
    engine.sleep()
    engine.wake()
    engine.update(model.named_parameters(), 1)
    assert gap(model, ask(1)[0], generate(engine, ask(1), LONG)[0]) < LIMIT
