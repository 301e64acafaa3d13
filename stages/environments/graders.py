"""Graders of the user's own tasks: does a completion give the answer? Each returns (correct, an answer was found)."""

import re
from collections.abc import Callable

from stages.environments.math_process import MathProcess


def grade_exact(answer: str, completion: str) -> tuple[bool, bool]:
    """The completion is the answer, but for white space at its ends."""
    found = completion.strip()
    return found == answer.strip(), bool(found)


def grade_contains(answer: str, completion: str) -> tuple[bool, bool]:
    """The completion has the answer in it, and not as a part of a longer word or number (4 is not in 14, -4 or 3.4)."""
    text = re.escape(answer.strip())
    pattern = rf"(?<!\w)(?<!-)(?<!\d[.,]){text}(?!\w)(?![.,]\d)"
    return re.search(pattern, completion, flags=re.ASCII) is not None, bool(completion.strip())


GRADERS: dict[str, Callable[[str, str], tuple[bool, bool]]] = {
    "exact": grade_exact,
    "contains": grade_contains,
    # math-verify finds an expression in the completion that is equal to the answer.
    "math": MathProcess().grade,
}
