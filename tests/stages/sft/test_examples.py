from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.rows import row_id
from data.tokenizer import character_tokenizer, decode
from stages.sft.examples import Example, forward_passes, read_examples

ALPHABET = "0123456789+:;>"


def examples_of(sizes: list[tuple[int, int]]) -> list[Example]:
    numbers = iter(range(1_000_000))
    return [
        Example(*(np.array([next(numbers) for _ in range(size)], np.int32) for size in (prompt, completion)))
        for prompt, completion in sizes
    ]


def test_a_completion_is_the_trace_or_else_the_answer_and_the_end_token(synth: Callable[..., Path]) -> None:
    folder = synth([("1+2:", "3", "1;2>3"), ("4+4:", "8", "")]).parent
    tokenizer = character_tokenizer(ALPHABET)
    examples = read_examples(folder, "train", tokenizer, 64)
    texts = [(decode(tokenizer, e.prompt.tolist()), decode(tokenizer, e.completion.tolist())) for e in examples]
    assert texts == [("1+2:", "1;2>3"), ("4+4:", "8")]
    assert all(example.completion[-1] == tokenizer.eos_token_id for example in examples)


def test_rows_keep_their_order_across_batches(synth: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = synth([(f"{number}+0:", str(number), "") for number in range(10)]).parent
    monkeypatch.setattr("stages.sft.examples.BATCH_ROWS", 3)
    tokenizer = character_tokenizer(ALPHABET)
    examples = read_examples(folder, "train", tokenizer, 64)
    assert [decode(tokenizer, example.completion.tolist()) for example in examples] == list(map(str, range(10)))


def test_a_sequence_longer_than_the_context_is_named(synth: Callable[..., Path]) -> None:
    folder = synth([("1+2:", "3", ""), ("1+2+3:", "6", "1;2;3>6")]).parent
    tokenizer = character_tokenizer(ALPHABET)
    assert max(example.num_tokens for example in read_examples(folder, "train", tokenizer, 15)) == 15
    with pytest.raises(ValueError, match=rf"train: row {row_id('1+2+3:')} has 15 tokens.*sft\.max_tokens"):
        read_examples(folder, "train", tokenizer, 14)


def test_a_row_with_an_unknown_character_is_named(synth: Callable[..., Path]) -> None:
    folder = synth([("1+2:", "3", ""), ("1*2:", "2", "")]).parent
    with pytest.raises(ValueError, match=rf"row {row_id('1*2:')}: '\*' in "):
        read_examples(folder, "train", character_tokenizer(ALPHABET), 64)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=20),
    st.integers(1, 5),
    st.integers(20, 80),
)
def test_the_ranks_train_on_every_sequence_once_in_equally_many_passes(
    sizes: list[tuple[int, int]], world_size: int, max_tokens: int
) -> None:
    examples = examples_of(sizes)
    ranks = [forward_passes(examples, rank, world_size, max_tokens) for rank in range(world_size)]
    assert len({len(passes) for passes in ranks}) == 1
    learned = [token for passes in ranks for packed in passes for token in packed.tokens[packed.learn]]
    assert sorted(learned) == sorted(token for example in examples for token in example.completion)


def test_the_ranks_have_about_equal_tokens() -> None:
    numbers = np.random.default_rng(1)
    examples = examples_of([(5, int(size)) for size in numbers.integers(1, 60, 64)])
    loads = [sum(len(p.tokens) for p in forward_passes(examples, rank, 4, 500)) for rank in range(4)]
    assert max(loads) - min(loads) <= 65
