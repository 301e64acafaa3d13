"""Where stop strings end a completion: in the same place in each engine."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Engine, Request, generate
from stages.rollout.stops import StopWatch
from stages.rollout.torch.engine import TorchEngine
from stages.rollout.vllm.engine import VllmEngine
from stages.trainer import attention

PIECES = ["<pad>", "<s>", "</s>", "<turn>", "a", "b", "c", "ab", "bc", "abc", "cc", "x", "y", "xy", "Ã", "©"]
STOPS = [("ab",), ("bca", "xy"), ("é",), ("<turn>",), ("urn>", "xx"), ("a<turn>",)]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte level: "Ã" and "©" stand for the two bytes of "é"; `<turn>` is special, beside pad, start and end."""
    backend = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(PIECES)}, unk_token="<pad>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    return tokenizer


@pytest.fixture(scope="module", params=["torch", "vllm"])
def engine(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast) -> Iterator[Engine]:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32}
    config = Qwen3Config(
        vocab_size=len(PIECES), num_hidden_layers=1, intermediate_size=32, max_position_embeddings=64, **sizes
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME).eval()
    if request.param == "torch":
        engine = TorchEngine(model, 2, tokenizer=tokenizer)
    else:
        engine = VllmEngine(config, tokenizer, slots=40)
        engine.update(model.named_parameters(), 1)
    yield engine
    engine.close()


def read(tokenizer: PreTrainedTokenizerFast, stop: tuple[str, ...], pieces: list[str]) -> int | None:
    """How many of `pieces` are read up to a stop string; None where there is none."""
    watch = StopWatch(stop, tokenizer)
    watch.read([PIECES.index(piece) for piece in pieces])
    return watch.count if watch.found else None


def test_a_stop_string_may_lie_in_one_token_or_span_several(tokenizer: PreTrainedTokenizerFast) -> None:
    assert read(tokenizer, ("cab",), ["a", "bc", "ab", "x"]) == 3
    assert read(tokenizer, ("b",), ["x", "abc", "x"]) == 2
    assert read(tokenizer, ("cc", "xy"), ["c", "x", "y", "cc"]) == 3
    assert read(tokenizer, ("cc",), ["c", "x", "c"]) is None


def test_a_stop_string_may_have_special_tokens_between_and_characters_of_several_tokens(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    assert read(tokenizer, ("ab",), ["a", *["<pad>"] * 30, "b"]) == 32
    assert read(tokenizer, ("é",), ["a", "Ã", "©", "b"]) == 3
    assert read(tokenizer, ("xéa",), ["Ã", "©", "x", "Ã", "©", "abc"]) == 6


def test_a_stop_string_may_be_the_name_of_a_special_token(tokenizer: PreTrainedTokenizerFast) -> None:
    assert read(tokenizer, ("<turn>",), ["a", "<pad>", "<turn>", "b"]) == 3
    assert read(tokenizer, ("a<turn>",), ["a", "<turn>", "b"]) is None


@pytest.mark.parametrize("stop", STOPS)
def test_each_engine_ends_a_completion_where_the_watch_finds_the_stop_string(
    engine: Engine, tokenizer: PreTrainedTokenizerFast, stop: tuple[str, ...]
) -> None:
    requests = [Request([1, 4 + seed % 9], seed) for seed in range(40)]
    plain = generate(engine, requests, SamplingConfig(max_new_tokens=30))
    stopped = generate(engine, requests, SamplingConfig(max_new_tokens=30, stop=stop))
    cut = 0
    for free, found in zip(plain, stopped, strict=True):
        watch = StopWatch(stop, tokenizer)
        watch.read(free.tokens)
        assert found.tokens == free.tokens[: watch.count]
        assert len(found.logprobs) == len(found.versions) == len(found.tokens)
        assert found.reason == ("stop" if watch.found else free.reason)
        cut += len(found.tokens) < len(free.tokens)
    assert (cut > 0) == (stop != ("a<turn>",))
