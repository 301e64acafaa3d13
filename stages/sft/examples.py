"""Rows as token ids, and how a batch of them becomes the forward passes of each rank."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from data.packing import Packed, balanced_parts, micro_batches, pack
from data.rows import completion_of
from data.shards import read_split
from data.tokenizer import encode_completion, encode_prompt

BATCH_ROWS = 10_000
"""Rows that are text at the same time; of the others there are the tokens only."""


class Example(NamedTuple):
    """A tokenised row."""

    prompt: npt.NDArray[np.int32]
    completion: npt.NDArray[np.int32]
    """With the end token."""

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt) + len(self.completion)


def read_examples(folder: Path, split: str, tokenizer: PreTrainedTokenizerFast, max_tokens: int) -> list[Example]:
    """The tokenised rows of `folder`/`split`. ValueError names the first row that is too long or has unknown text."""
    examples: list[Example] = []
    batches = read_split(folder, split).select(["id", "prompt", "answer", "trace"]).to_batches(max_chunksize=BATCH_ROWS)
    for row in (row for batch in batches for row in batch.to_pylist()):
        try:
            prompt = encode_prompt(tokenizer, row["prompt"])
            completion = encode_completion(tokenizer, completion_of(row))
        except ValueError as error:
            raise ValueError(f"{folder / split}: row {row['id']}: {error}") from error
        length = len(prompt) + len(completion)
        if length > max_tokens:
            raise ValueError(
                f"{folder / split}: row {row['id']} has {length} tokens, more than the context of {max_tokens}; raise "
                "sft.max_tokens (at most the positions of the model), or leave the row out of the data"
            )
        examples.append(Example(np.array(prompt, np.int32), np.array(completion, np.int32)))
    return examples


def forward_passes(examples: Sequence[Example], rank: int, world_size: int, max_tokens: int) -> list[Packed]:
    """The packed micro-batches of `rank`'s share of a batch.

    Shares have about equal tokens. All ranks get the same number of micro-batches, some of them empty, because a
    forward pass of a sharded model needs every rank.
    """
    shares = balanced_parts([example.num_tokens for example in examples], world_size)
    splits = [micro_batches([examples[index].num_tokens for index in share], max_tokens) for share in shares]
    passes = [pack([examples[shares[rank][index]] for index in part]) for part in splits[rank]]
    return passes + [pack([])] * (max(map(len, splits)) - len(passes))
