"""Graders of the user's own tasks: does a completion give the answer? Each returns (correct, an answer was found)."""

import logging
import re
from collections.abc import Callable


def grade_exact(answer: str, completion: str) -> tuple[bool, bool]:
    """The completion is the answer, but for white space at its ends."""
    found = completion.strip()
    return found == answer.strip(), bool(found)


def grade_contains(answer: str, completion: str) -> tuple[bool, bool]:
    """The completion has the answer in it, and not as a part of a longer word or number (4 is not in 14, -4 or 3.4)."""
    text = re.escape(answer.strip())
    pattern = rf"(?<!\w)(?<!-)(?<!\d[.,]){text}(?!\w)(?![.,]\d)"
    return re.search(pattern, completion, flags=re.ASCII) is not None, bool(completion.strip())


def grade_math(answer: str, completion: str) -> tuple[bool, bool]:
    """math-verify finds an expression in the completion that is equal to the answer. It may compute for ever.

    ValueError when it cannot read the answer.
    """
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    bare = answer.strip()
    # Plain "x^2+1" is an expression to math-verify only between dollar signs.
    marked = bare if "$" in bare or "\\boxed" in bare else f"${bare}$"
    gold = parse(marked, parsing_timeout=None, raise_on_error=True)  # pyright: ignore[reportArgumentType]
    if all(isinstance(part, str) for part in gold):
        raise ValueError(f"the answer {answer!r} is not an expression that math-verify can read")
    found = parse(completion, parsing_timeout=None, raise_on_error=True)  # pyright: ignore[reportArgumentType]
    return verify(gold, found, timeout_seconds=None, raise_on_error=True), bool(found)


GRADERS: dict[str, Callable[[str, str], tuple[bool, bool]]] = {
    "exact": grade_exact,
    "contains": grade_contains,
    "math": grade_math,
}
