"""Stop tokens and stop strings."""

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Request, generate
from stages.rollout.stops import StopWatch
from stages.rollout.torch import engine as engine_module
from stages.rollout.torch.engine import TorchEngine

Tiny = Callable[..., PreTrainedModel]
PIECES = ["<pad>", "<s>", "</s>", "a", "b", "c", "ab", "bc", "ca", "abc", "cc", "x", "y", "xy", "Ã", "©", " ", "d"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte level: "Ã" and "©" stand for the two bytes of "é"."""
    pieces = [*PIECES, *(f"z{number}" for number in range(24 - len(PIECES)))]
    backend = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="<pad>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("looks", [1, 7])
def test_a_completion_ends_at_its_stop_string_and_keeps_its_tokens(
    tiny: Tiny, tokenizer: PreTrainedTokenizerFast, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "STEPS_BETWEEN_LOOKS", {"cpu": looks})
    engine = TorchEngine(tiny(), 2, tokenizer=tokenizer)
    requests = [Request([1, 3 + seed % 9], seed) for seed in range(40)]
    plain = generate(engine, requests, SamplingConfig(max_new_tokens=30))
    stopped = generate(engine, requests, SamplingConfig(max_new_tokens=30, stop=("bca", "xy")))
    cut = 0
    for free, found in zip(plain, stopped, strict=True):
        watch = StopWatch(("bca", "xy"), tokenizer)
        watch.read(free.tokens)
        assert found.tokens == free.tokens[: watch.count]
        assert len(found.logprobs) == len(found.tokens)
        assert found.reason == ("stop" if watch.found else free.reason)
        cut += len(found.tokens) < len(free.tokens)
    assert cut >= 5


def test_the_next_turn_goes_on_after_a_stop_string(tiny: Tiny, tokenizer: PreTrainedTokenizerFast) -> None:
    engine = TorchEngine(tiny(), -1, tokenizer=tokenizer)
    engine.start(SamplingConfig(max_new_tokens=30, stop=("a", "x")))
    engine.add(0, Request([1, 5], 0, session=0))
    (_, first), *_ = engine.step() or engine.step()
    assert first.reason == "stop"
    before = engine.prefilled
    engine.add(0, Request([1, 5, *first.tokens, 4], 1, session=0))
    (_, second), *_ = engine.step() or engine.step()
    assert engine.prefilled - before == 2
    whole = generate(engine, [Request([1, 5, *first.tokens, 4], 1)], SamplingConfig(max_new_tokens=30, stop=("a", "x")))
    assert whole[0].tokens == second.tokens


def test_stop_tokens_end_a_completion_beside_the_end_token(tiny: Tiny) -> None:
    engine = TorchEngine(tiny(), 2)
    requests = [Request([1, 3 + seed % 9], seed) for seed in range(40)]
    plain = generate(engine, requests, SamplingConfig(max_new_tokens=30))
    stopped = generate(engine, requests, SamplingConfig(max_new_tokens=30, stop_tokens=(5, 9)))
    for free, found in zip(plain, stopped, strict=True):
        ends = [place for place, token in enumerate(free.tokens) if token in (2, 5, 9)]
        assert found.tokens == free.tokens[: ends[0] + 1 if ends else 30]
        assert found.reason == ("stop" if ends else "length")
