"""The gradient's order: autograd adds up by the age of its functions, which it counts thread by thread."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stages.algorithms.node import FORWARD, Node

if TYPE_CHECKING:
    from torch import Tensor


def number_in_order(nodes: Iterable[Node], quantities: Mapping[str, "Tensor"]) -> None:
    """Number autograd's functions as if one thread had run the nodes in this order. The policy's own stay as they are.

    So the backward pass adds up in the order that it would have had then, and the gradient is the same bit for bit,
    whichever thread ran which node. `_set_sequence_nr` is there since torch 2.2; Megatron-Core relies on it too.
    """
    seen: set[Any] = {None}
    number = 0
    for node in nodes:
        made = [quantities[name] for suffix in node.operator.gives if (name := node.name + suffix) in quantities]
        ends: set[Any] = {tensor.grad_fn for tensor in made} - seen
        if node.operator.name == FORWARD:
            # A function that is made now is younger than all of the policy.
            youngest: list[Any] = [tensor.view_as(tensor).grad_fn for tensor in made if tensor.grad_fn is not None]
            number = max((function._sequence_nr() for function in youngest), default=0)
            seen |= ends
            continue
        for function in sorted(_reached(ends, seen), key=lambda function: function._sequence_nr()):
            number += 1
            function._set_sequence_nr(number)
            seen.add(function)


def _reached(ends: set[Any], seen: set[Any]) -> set[Any]:
    """The functions that lead to `ends` and are not seen yet, without the weights' own (they have a `variable`)."""
    reached, waiting = set[Any](), list(ends)
    while waiting:
        function = waiting.pop()
        if function not in seen and function not in reached and not hasattr(function, "variable"):
            reached.add(function)
            waiting += [before for before, _ in function.next_functions]
    return reached
