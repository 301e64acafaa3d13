"""Graders of the user's own tasks: does a completion give the answer? Each returns (correct, an answer was found)."""

import re
import threading
from collections.abc import Callable

TIMEOUT_SECONDS = 5
"""Limit of each parse and each comparison of `grade_math`, where a limit can be set."""


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
    """math-verify finds an expression in the completion that is equal to the answer.

    math-verify limits its time by an alarm signal, which Python has on the main thread alone: on any other thread there
    is no limit. Raises ValueError when the answer is not an expression, TimeoutError when the limit is reached.
    """
    # Imported here because sympy takes half a second, which other graders need not pay.
    from math_verify import parse, verify
    from math_verify.errors import TimeoutException

    seconds = TIMEOUT_SECONDS if threading.current_thread() is threading.main_thread() else None
    bare = answer.strip()
    # Plain "x^2+1" is an expression to math-verify only between dollar signs.
    marked = bare if "$" in bare or "\\boxed" in bare else f"${bare}$"
    try:
        gold = parse(marked, parsing_timeout=seconds, raise_on_error=True)  # pyright: ignore[reportArgumentType]
        if not gold:
            raise ValueError(f"the answer {answer!r} is not an expression that math-verify can read")
        found = parse(completion, parsing_timeout=seconds, raise_on_error=True)  # pyright: ignore[reportArgumentType]
        return verify(gold, found, timeout_seconds=seconds, raise_on_error=True), bool(found)
    except TimeoutException as error:
        # It derives from BaseException, which would end the process.
        raise TimeoutError(f"math-verify took more than {TIMEOUT_SECONDS} s") from error


GRADERS: dict[str, Callable[[str, str], tuple[bool, bool]]] = {
    "exact": grade_exact,
    "contains": grade_contains,
    "math": grade_math,
}
