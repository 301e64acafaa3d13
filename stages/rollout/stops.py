"""Where stop strings end a completion, in every engine."""

from collections import deque
from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from data.tokenizer import decode

MARGIN = 4
"""Tokens that may hold a part of one character, before the first that belongs to a stop string."""


class StopWatch:
    """Reads one completion, token by token; a stop string may span tokens, and begin or end inside one.

    It is looked for in the text without special tokens, and in the name of each special token (`<|im_end|>`).
    """

    def __init__(self, strings: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> None:
        self.strings, self.tokenizer = strings, tokenizer
        added = tokenizer.added_tokens_decoder
        self.special = {token: text.content for token, text in added.items() if text.special}
        # A token that is not special has at least one byte, so a stop string lies within these.
        longest = max((len(text.encode()) for text in strings), default=0)
        self.window: deque[int] = deque(maxlen=longest + MARGIN)
        self.count = 0
        """Tokens that were read."""
        self.found = False
        """Whether a stop string ends in the last of them."""

    def read(self, tokens: Sequence[int]) -> None:
        """Read `tokens`, which come next, up to the one in which a stop string ends."""
        for token in tokens:
            self.count += 1
            text = self.special.get(token)
            if text is None:
                self.window.append(token)
                text = decode(self.tokenizer, list(self.window))
            self.found = any(string in text for string in self.strings)
            if self.found:
                return
