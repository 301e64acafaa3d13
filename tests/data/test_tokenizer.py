import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from data.tokenizer import (
    character_tokenizer,
    decode,
    encode_completion,
    encode_prompt,
    end_token,
    load_tokenizer,
    tokenizer_digest,
)

ALPHABET = "0123456789+-*<>=;:() é\n"
TEMPLATE = "{% for m in messages %}<u>{{ m['content'] }}</u>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"


def word_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    words = ["<unk>", "</s>", "one", "two", "three"]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


@settings(deadline=None, max_examples=50)
@given(st.text(ALPHABET))
def test_every_text_of_the_alphabet_comes_back(text: str) -> None:
    tokenizer = character_tokenizer(ALPHABET)
    assert decode(tokenizer, encode_prompt(tokenizer, text)) == text
    assert decode(tokenizer, encode_completion(tokenizer, text)) == text


def test_one_token_a_character_after_the_three_special_ones() -> None:
    tokenizer = character_tokenizer("ab:")
    assert encode_prompt(tokenizer, "ab:") == [1, 3, 4, 5]
    assert encode_completion(tokenizer, "ba") == [4, 3, 2]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, end_token(tokenizer)) == (0, 1, 2)
    assert len(tokenizer) == 6


def test_special_tokens_and_ids_without_a_character_do_not_show() -> None:
    assert decode(character_tokenizer("ab"), [1, 3, 2, 0, 4, 99]) == "ab"


def test_plain_transformers_loads_it_beside_a_model(tmp_path: Path) -> None:
    tokenizer = character_tokenizer(ALPHABET)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    plain = AutoTokenizer.from_pretrained(tmp_path)
    assert plain("1 + 2:<>", add_special_tokens=False).input_ids == encode_prompt(tokenizer, "1 + 2:<>")[1:]
    assert plain.eos_token_id == 2
    assert tokenizer_digest(load_tokenizer(tmp_path)) == tokenizer_digest(tokenizer)


def test_an_unknown_character_is_named() -> None:
    tokenizer = character_tokenizer("12+:")
    with pytest.raises(ValueError, match=r"'-' in '2-1:'"):
        encode_prompt(tokenizer, "2-1:")
    with pytest.raises(ValueError, match="'x'"):
        encode_completion(tokenizer, "1x")


def test_an_unknown_word_is_named() -> None:
    tokenizer = word_tokenizer(unk_token="<unk>", eos_token="</s>")
    assert encode_completion(tokenizer, "two one") == [3, 2, 1]
    with pytest.raises(ValueError, match="'four' in 'one four'"):
        encode_prompt(tokenizer, "one four")


@pytest.mark.parametrize("alphabet", ["", "abca"])
def test_an_alphabet_has_each_character_once(alphabet: str) -> None:
    with pytest.raises(ValueError, match="alphabet"):
        character_tokenizer(alphabet)


def test_a_prompt_without_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        encode_prompt(word_tokenizer(unk_token="<unk>", eos_token="</s>"), "")


def test_the_chat_template_frames_the_prompt_and_is_part_of_the_digest() -> None:
    tokenizer = character_tokenizer("hi<>/ua")
    before = tokenizer_digest(tokenizer)
    tokenizer.chat_template = TEMPLATE
    assert decode(tokenizer, encode_prompt(tokenizer, "hi")) == "<u>hi</u><a>"
    assert decode(tokenizer, encode_completion(tokenizer, "hi")) == "hi"
    assert tokenizer_digest(tokenizer) != before


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path: Path) -> None:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(special_tokens=["</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(["a"], trainer)
    backend.enable_truncation(4)
    backend.enable_padding(length=4, pad_id=0, pad_token="</s>")
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>").save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert len(encode_prompt(tokenizer, "abcdefgh")) == 8
    assert len(encode_prompt(tokenizer, "a")) == 1


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path.name}: no tokenizer.json"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_an_end_token_is_an_error(tmp_path: Path) -> None:
    word_tokenizer(unk_token="<unk>").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="eos_token"):
        load_tokenizer(tmp_path)
