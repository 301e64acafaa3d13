"""Text to token ids and back: a character tokenizer for models from nothing, or the one of a Hugging Face folder.

Prompt, completions and the observations between them are tokenised apart, so the ids of each do not depend on what
follows it. Sampled ids are trained on as they are: text is never tokenised again.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import AutoTokenizer, PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<bos>", "<eos>")
ANSWER = "\ue000answer\ue000"
"""Stands in a chat template for what the policy said: no template and no prompt has it."""


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """One token a character: ids 0 <pad>, 1 <bos>, 2 <eos>, then the characters of `alphabet` in its order."""
    twice = sorted({character for character in alphabet if alphabet.count(character) > 1})
    if twice or not alphabet:
        raise ValueError(f"model.architecture.alphabet: empty, or with characters that occur twice: {twice}")
    words = {word: index for index, word in enumerate((*SPECIAL, *alphabet))}
    backend = Tokenizer(WordLevel(words))
    backend.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=SPECIAL[0],
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a Hugging Face folder. Raises ValueError when there is none, or none with an end token."""
    if not (folder / "tokenizer_config.json").exists() and not (folder / "tokenizer.json").exists():
        raise ValueError(f"{folder}: no tokenizer.json; copy the model's tokenizer files into the folder")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(
            f"{folder}: {type(tokenizer).__name__} is not a tokenizer of the tokenizers library; convert it"
        )
    if not isinstance(tokenizer.eos_token_id, int):
        raise ValueError(f"{folder}: the tokenizer has no eos_token; name it in tokenizer_config.json")
    # A tokenizer.json may carry the truncation and padding that its authors trained with.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def encode_prompt(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """Ids of a prompt: by the chat template with its generation prompt where there is one, else <bos> and the text.

    Raises ValueError for a character that the tokenizer does not know, and for a prompt without any token.
    """
    if tokenizer.chat_template:
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        ids = _encode(tokenizer, str(text))
    else:
        start = [tokenizer.bos_token_id] if isinstance(tokenizer.bos_token_id, int) else []
        ids = start + _encode(tokenizer, prompt)
    if not ids:
        raise ValueError("an empty prompt, and the tokenizer has no start token to put in its place")
    return ids


def encode_observation(tokenizer: PreTrainedTokenizerFast, text: str, said: Sequence[int]) -> list[int]:
    """Ids between the turn of the policy whose ids were `said` and its next turn: what the environment answered.

    By the chat template: the end of the policy's turn unless that was the last token said, the user's turn, and the
    generation prompt. Without a template the text as it is. Raises ValueError for a character that the tokenizer does
    not know, for a template that cannot join turns, and where nothing is left.
    """
    if tokenizer.chat_template:
        messages = [("user", "?"), ("assistant", ANSWER), ("user", text)]
        rendered = tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in messages],
            add_generation_prompt=True,
            tokenize=False,
        )
        _, found, text = str(rendered).partition(ANSWER)
        if not found:
            raise ValueError("the chat template leaves out what the assistant said; take one for several turns")
    ids = _encode(tokenizer, text)
    if tokenizer.chat_template and ids[:1] == list(said[-1:]):
        ids = ids[1:]
    if not ids:
        raise ValueError("an empty observation, but the episode goes on; the environment must answer something")
    return ids


def encode_completion(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Ids of a completion with the end token. Raises ValueError for a character that the tokenizer does not know."""
    return [*_encode(tokenizer, text), end_token(tokenizer)]


def end_token(tokenizer: PreTrainedTokenizerFast) -> int:
    """Id of the token that ends every completion."""
    assert isinstance(tokenizer.eos_token_id, int)
    return tokenizer.eos_token_id


def decode(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    """Text of `ids` without special tokens."""
    return str(tokenizer.decode(ids, skip_special_tokens=True))


def tokenizer_digest(tokenizer: PreTrainedTokenizerFast) -> str:
    """SHA-256 of all that decides which ids a text gets: vocabulary, rules, special tokens and chat template."""
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    parts = [tokenizer.backend_tokenizer.to_str(), special, tokenizer.chat_template]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    backend = tokenizer.backend_tokenizer
    if isinstance(backend.model, WordLevel) and backend.token_to_id(backend.model.unk_token) is None:
        for character in text:
            if backend.token_to_id(character) is None:
                raise ValueError(f"{character!r} in {text!r} is not in the tokenizer's alphabet")
    encoding = backend.encode(text, add_special_tokens=False)
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in encoding.ids:
        start, end = encoding.offsets[encoding.ids.index(tokenizer.unk_token_id)]
        raise ValueError(f"{text[start:end]!r} in {text!r} is not in the tokenizer's vocabulary")
    return encoding.ids
