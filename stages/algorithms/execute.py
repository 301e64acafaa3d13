"""Runs a graph as it stands.

A graph of small arithmetic alone runs in the caller's thread, in the order of its list: an operation on as many numbers
as a micro-batch has tokens is over before a thread has begun. Whatever may take longer (operators of the user's own, a
limit of seconds, a large batch) runs side by side, with the results that one after the other would have.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from operator import and_
from typing import TYPE_CHECKING

from stages.algorithms.kinds import Batch, Kind
from stages.algorithms.node import Node
from stages.algorithms.operator import OPERATORS
from stages.algorithms.order import followers
from stages.algorithms.side_by_side import SideBySide

if TYPE_CHECKING:
    from torch import Tensor

SMALL = 2**16
"""Tokens up to which a shipped operator takes no longer than to wake a thread (tens of microseconds, on one core)."""


class Graph:
    """The nodes of one section, in an order in which each finds what it takes."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)

    @cached_property
    def followers(self) -> dict[str, list[Node]]:
        """By node, those that wait for it."""
        return followers(self.nodes)

    @cached_property
    def arithmetic(self) -> bool:
        """Whether nothing can take long but what runs in the caller's thread anyway."""
        return all(n.in_order or (OPERATORS.get(n.operator.name) is n.operator and not n.seconds) for n in self.nodes)

    def run(
        self, batch: Batch, known: Mapping[str, "Tensor"], kinds: Mapping[str, Kind], finite: Iterable[str] = ()
    ) -> dict[str, "Tensor"]:
        """The known quantities and all that the nodes make of them. Raises the first error that any node met.

        A node over its time limit is a TimeoutError, as soon as the caller's thread has nothing else to do. Its thread
        goes on, since a thread cannot be killed; it does not hold up the end of the process, which the error is.
        ArithmeticError when a quantity of `finite` is not: it names the first node that gave such a value.
        """
        sizes = _sizes(batch, known, kinds)
        if self.arithmetic and sizes[Kind.TOKEN] <= SMALL:
            made = dict(known)
            for node in self.nodes:
                made |= node.run(batch, made, sizes)
        else:
            made = SideBySide(self.nodes, self.followers, batch, known, sizes).result()
        flags = [made[name].isfinite().all() for name in finite]
        if flags and not bool(reduce(and_, flags)):  # one answer of the device for all
            raise ArithmeticError(self._not_finite(made))
        return made

    def _not_finite(self, made: Mapping[str, "Tensor"]) -> str:
        wrong = {name for name, quantity in made.items() if not bool(quantity.isfinite().all())}
        for node in self.nodes:
            if any(node.name + suffix in wrong for suffix in node.operator.gives):
                taken = ", ".join(sorted(wrong & set(node.takes.values()))) or "nothing"
                said = f"{node.where}: {node.operator.name} gave a value that is not finite"
                return f"{said}; of what it takes, {taken} is not finite either"
        return f"{', '.join(sorted(wrong))}: the stage gave a value that is not finite"


def _sizes(batch: Batch, known: Mapping[str, "Tensor"], kinds: Mapping[str, Kind]) -> dict[Kind, int]:
    """The length of a quantity of each kind; that of the tokens without asking the device, where it can be."""
    tokens = next((len(known[name]) for name in known if kinds[name] is Kind.TOKEN), None)
    return {
        Kind.TOKEN: len(batch.sample_of_token) if tokens is None else tokens,
        Kind.SAMPLE: len(batch.lengths),
        Kind.GROUP: batch.num_groups,
    }
