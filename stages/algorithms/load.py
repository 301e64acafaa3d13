"""From the name of an algorithm to the algorithm."""

from stages.algorithms import advantages, kl, losses, operators, penalties
from stages.algorithms.algorithm import Algorithm
from stages.algorithms.check import Checker
from stages.algorithms.operator import OPERATORS
from stages.algorithms.spec import SHIPPED, find_algorithm, operator_files, read_spec
from stages.algorithms.user_operators import with_operators

__all__ = ["OPERATOR_MODULES", "SHIPPED", "load_algorithm"]

OPERATOR_MODULES = (operators, kl, advantages, penalties, losses)
"""Where operators live: to import a module is to register its operators."""


def load_algorithm(name: str) -> Algorithm:
    """A shipped algorithm by its name, or the file at a path. Every name, value, kind and order is checked.

    Raises ValueError that names the file and the node, says what is wrong, and what would be right.
    """
    path = find_algorithm(name)
    spec = read_spec(path)
    known = with_operators(OPERATORS, path, operator_files(path, spec))
    return Checker(path, spec, known).algorithm()
