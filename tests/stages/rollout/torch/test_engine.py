from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import GraniteConfig, LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Request, generate
from stages.rollout.torch import forward, rows, slots
from stages.rollout.torch.engine import TorchEngine, unsharded_copy
from stages.rollout.torch.forward import forward_of

EOS = 2
Tiny = Callable[..., PreTrainedModel]
Plain = Callable[[PreTrainedModel], PreTrainedModel]
Logprobs = Callable[..., npt.NDArray[np.float32]]
PROMPTS = [[1, *range(3, 3 + length)] for length in (4, 9, 1, 6, 4, 12, 2, 7, 3)]


def requests(prompts: Sequence[list[int]] = PROMPTS, seed: int = 100) -> list[Request]:
    return [Request(prompt, seed + index) for index, prompt in enumerate(prompts)]


def same(left: list[Completion], right: list[Completion]) -> bool:
    return all(
        a.tokens == b.tokens and np.array_equal(a.logprobs, b.logprobs) and a.finished == b.finished
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (Qwen3Config, {"head_dim": 8, "tie_word_embeddings": True}),
        (Qwen2Config, {"tie_word_embeddings": True}),
        (LlamaConfig, {"tie_word_embeddings": False, "attention_bias": True, "rope_theta": 500.0}),
        (GraniteConfig, {"tie_word_embeddings": False, "residual_multiplier": 0.5}),
    ],
    ids=["qwen3", "qwen2", "llama", "granite"],
)
def test_greedy_is_that_of_transformers_generate(
    kind: Any, own: dict[str, Any], shape: dict[str, Any], tiny: Tiny, reference: Plain
) -> None:
    model = tiny(kind(**shape, **own))
    plain: Any = reference(model)
    engine = TorchEngine(model, EOS)
    assert forward_of(model).lean == (kind is not GraniteConfig)  # Granite goes by transformers' own modules
    sampling = SamplingConfig(max_new_tokens=20, slots=3)
    for request, found in zip(requests(), generate(engine, requests(), sampling, greedy=True), strict=True):
        prompt = torch.tensor([request.prompt])
        wanted = plain.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=20)
        assert found.tokens == wanted[0, prompt.shape[1] :].tolist()
        assert found.finished == (found.tokens[-1] == EOS)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_tempered_model_on_the_whole_sequence(
    temperature: float, tiny: Tiny, logprobs_of: Logprobs
) -> None:
    model = tiny()
    sampling = SamplingConfig(max_new_tokens=20, temperature=temperature, slots=4)
    for request, found in zip(requests(), generate(TorchEngine(model, EOS), requests(), sampling), strict=True):
        wanted = logprobs_of(model, request.prompt, found.tokens, temperature)
        np.testing.assert_allclose(found.logprobs, wanted, atol=1e-5)


def test_greedy_logprobs_are_untempered(tiny: Tiny, reference: Plain) -> None:
    model = tiny()
    found = generate(TorchEngine(model, EOS), requests(), SamplingConfig(temperature=0.0, max_new_tokens=5))
    prompt = torch.tensor([PROMPTS[0]])
    plain: Any = reference(model)
    wanted = plain(prompt).logits[0, -1].log_softmax(-1).max().item()
    assert found[0].logprobs[0] == pytest.approx(wanted, abs=1e-5)


def test_neither_slots_nor_neighbours_nor_order_change_a_completion(tiny: Tiny) -> None:
    engine = TorchEngine(tiny(), EOS)
    full = generate(engine, requests(), SamplingConfig(max_new_tokens=20, slots=9))
    few = generate(engine, requests(), SamplingConfig(max_new_tokens=20, slots=2))
    turned = generate(engine, requests()[::-1], SamplingConfig(max_new_tokens=20, slots=4))[::-1]
    alone = [generate(engine, [request], SamplingConfig(max_new_tokens=20))[0] for request in requests()]
    for other in (few, turned, alone):
        assert [completion.tokens for completion in full] == [completion.tokens for completion in other]


def test_the_same_call_gives_the_same_bits(tiny: Tiny) -> None:
    sampling = SamplingConfig(max_new_tokens=20, slots=4)
    first, second = (generate(TorchEngine(tiny(), EOS), requests(), sampling) for _ in range(2))
    assert same(first, second)


def test_small_prefills_and_rare_looks_change_nothing(monkeypatch: pytest.MonkeyPatch, tiny: Tiny) -> None:
    sampling = SamplingConfig(max_new_tokens=20, slots=4)
    usual = generate(TorchEngine(tiny(), EOS), requests(), sampling)
    monkeypatch.setattr(rows, "PREFILL_TOKENS", 8)
    monkeypatch.setattr("stages.rollout.torch.engine.STEPS_BETWEEN_LOOKS", {"cpu": 7})
    other = generate(TorchEngine(tiny(), EOS), requests(), sampling)
    assert [completion.tokens for completion in usual] == [completion.tokens for completion in other]


def test_a_long_prompt_does_not_pad_many_short_ones_to_its_length(monkeypatch: pytest.MonkeyPatch, tiny: Tiny) -> None:
    padded: list[int] = []
    of = slots.Padding.of

    def noted(*arguments: Any) -> slots.Padding:
        padding = of(*arguments)
        padded.append(padding.padded.numel())
        return padding

    monkeypatch.setattr(slots.Padding, "of", noted)
    monkeypatch.setattr(rows, "PREFILL_TOKENS", 40)
    prompts = [[1, *range(3, 22)], *([1, token] for token in range(3, 22))]
    generate(TorchEngine(tiny(), EOS), requests(prompts), SamplingConfig(max_new_tokens=2, slots=32))
    assert max(padded) == 40


def test_samples_of_one_prompt_differ_by_their_seeds_only(tiny: Tiny) -> None:
    engine = TorchEngine(tiny(), EOS)
    prompts = [PROMPTS[1]] * 8
    sampling = SamplingConfig(max_new_tokens=12)
    found = generate(engine, [Request(prompt, seed) for seed, prompt in enumerate(prompts)], sampling)
    assert len({tuple(completion.tokens) for completion in found}) > 4
    equal = generate(engine, [Request(prompt, 5) for prompt in prompts], sampling)
    assert len({tuple(completion.tokens) for completion in equal}) == 1


def test_each_request_has_its_own_limit_and_none_passes_the_context(tiny: Tiny) -> None:
    engine = TorchEngine(tiny(), eos=-1)
    wanted = [Request(PROMPTS[0], 1, max_new_tokens=3), Request(PROMPTS[1], 2), Request([1] * 60, 3)]
    found = generate(engine, wanted, SamplingConfig(max_new_tokens=9))
    assert [len(completion.tokens) for completion in found] == [3, 9, 4]
    assert not any(completion.finished for completion in found)


def test_a_prompt_that_fills_the_context_is_refused_by_its_number(tiny: Tiny) -> None:
    engine = TorchEngine(tiny(), EOS)
    with pytest.raises(ValueError, match="request 1: the prompt has 64 tokens, but the model's context is 64"):
        generate(engine, [Request([1], 0), Request([1] * 64, 1)], SamplingConfig())
    with pytest.raises(ValueError, match="request 0"):
        generate(engine, [Request([], 0)], SamplingConfig())


def test_noise_replaces_its_share_and_never_by_a_special_token(tiny: Tiny) -> None:
    model = tiny()
    engine = TorchEngine(model, EOS, special=(0, 1))
    many = [Request(PROMPTS[0], seed, 1) for seed in range(2000)]
    plain = generate(engine, many, SamplingConfig(), greedy=True)
    noisy = generate(engine, many, SamplingConfig(), greedy=True, noise=0.3)
    replaced = [b.tokens[0] for a, b in zip(plain, noisy, strict=True) if a.tokens != b.tokens]
    assert 0.3 * 20 / 21 - 0.04 < len(replaced) / 2000 < 0.3 + 0.04
    assert set(replaced).isdisjoint({0, 1, EOS})
    assert len(set(replaced)) >= 19


def test_noise_leaves_the_other_draws_as_they_are(tiny: Tiny) -> None:
    engine = TorchEngine(tiny(), EOS)
    many = [Request(PROMPTS[0], seed, 1) for seed in range(200)]
    plain = generate(engine, many, SamplingConfig())
    noisy = generate(engine, many, SamplingConfig(), noise=0.1)
    assert sum(a.tokens == b.tokens for a, b in zip(plain, noisy, strict=True)) > 160


def test_progress_is_told_and_no_request_is_an_empty_answer(tiny: Tiny) -> None:
    engine = TorchEngine(tiny(), EOS)
    told: list[int] = []
    generate(engine, requests(), SamplingConfig(max_new_tokens=8, slots=2), on_progress=told.append)
    assert told == sorted(told) and told[-1] == len(PROMPTS)
    assert generate(engine, [], SamplingConfig()) == []


def test_a_copy_takes_the_policys_weights_and_a_missing_one_is_an_error(tiny: Tiny) -> None:
    model, other = tiny(), tiny(seed=1)
    engine = TorchEngine(unsharded_copy(model, torch.device("cpu")), EOS)
    engine.update(model.named_parameters(), version=4)
    sampling = SamplingConfig(max_new_tokens=12)
    assert engine.version == 4
    assert same(generate(engine, requests(), sampling), generate(TorchEngine(model, EOS), requests(), sampling))
    assert not same(generate(engine, requests(), sampling), generate(TorchEngine(other, EOS), requests(), sampling))
    weights = dict(model.named_parameters())
    with pytest.raises(ValueError, match=r"lack .*model\.norm\.weight"):
        engine.update(((name, weights[name]) for name in weights if name != "model.norm.weight"), 5)
    with pytest.raises(ValueError, match="not in the engine's model"):
        engine.update([*weights.items(), ("value_head.weight", torch.zeros(1))], 5)


def test_generating_leaves_a_training_policy_as_it_was(tiny: Tiny) -> None:
    model = tiny().train()
    generate(TorchEngine(model, EOS), requests(), SamplingConfig(max_new_tokens=4))
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_layers_that_transformers_computes_otherwise_are_left_to_transformers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tiny: Tiny, logprobs_of: Logprobs
) -> None:
    def unturned(heads: torch.Tensor, _: object) -> torch.Tensor:
        return heads

    monkeypatch.setattr(forward, "_rotate", unturned)
    model = tiny().train()
    engine = TorchEngine(model, EOS)
    assert "its own, slower layers generate" in caplog.text
    request = requests()[1]
    found = generate(engine, [request], SamplingConfig(max_new_tokens=9))[0]
    np.testing.assert_allclose(found.logprobs, logprobs_of(model, request.prompt, found.tokens), atol=1e-5)
    assert model.training


def test_rounding_in_16_bits_is_no_reason_for_slower_layers(shape: dict[str, Any], tiny: Tiny) -> None:
    deep: dict[str, Any] = shape | {"num_hidden_layers": 24, "initializer_range": 1.0}
    model = tiny(LlamaConfig(**deep))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5 + torch.rand_like(parameter))  # a norm whose weights are 1 does not round
    model = model.bfloat16()
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    assert forward_of(model).lean
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.slow
def test_a_compiled_decode_step_samples_the_same_and_is_told_as_slow_and_kept_by_torch(
    tmp_path: Path, shape: dict[str, Any], tiny: Tiny, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    @contextmanager
    def slow(what: str) -> Generator[None]:
        told.append(what)
        yield
        told.append("done")

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    shallow: dict[str, Any] = shape | {"num_hidden_layers": 1}
    model = tiny(LlamaConfig(**shallow))
    sampling = SamplingConfig(max_new_tokens=9, slots=4)
    plain = generate(TorchEngine(model, EOS), requests(PROMPTS[:4]), sampling)
    with caplog.at_level("INFO"):
        found = generate(TorchEngine(model, EOS, compiling=slow), requests(PROMPTS[:4]), sampling)
    for left, right in zip(plain, found, strict=True):
        assert left.tokens == right.tokens
        np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-5)
    assert told[:2] == ["compiling the decode step of 4 rows, 16 positions", "done"] and told[-1] == "done"
    assert len(told) == 2 * len(set(told) - {"done"})
    assert "compiling the decode step of 4 rows, 16 positions took" in caplog.text
    assert any(tmp_path.iterdir())
