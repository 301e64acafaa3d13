"""An algorithm that was loaded and checked: two lists of nodes in an order in which each can run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stages.algorithms.kinds import Batch, Kind
from stages.algorithms.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

LOSS = "loss"
"""Name of the update's node that is minimised."""
FORWARD = "policy_forward"
REFERENCE = "reference_forward"
VALUES = "values"
"""The output of `policy_forward` that needs a critic."""


@dataclass(frozen=True)
class Node:
    """One operator at work."""

    name: str
    operator: Operator
    takes: dict[str, str]
    """By input, the quantity it gets: one of the given, `node`, or `node.output`."""
    values: dict[str, Any]
    wanted: frozenset[str] = frozenset()
    """Names of its outputs that anyone takes."""

    def run(self, batch: Batch, quantities: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
        """Its outputs, by the names under which others take them."""
        leading = [replace(batch, wanted=self.wanted)] if self.operator.takes_batch else []
        inputs = {name: quantities[source] for name, source in self.takes.items()}
        result = self.operator.function(*leading, **inputs, **self.values)
        if "" in self.operator.outputs:
            return {self.name: result}
        return {f"{self.name}.{output}": getattr(result, output) for output in self.wanted}


@dataclass(frozen=True)
class Algorithm:
    """`experience` runs once for a batch of rollouts, without gradient; `update` for every micro-batch, with it."""

    name: str
    description: str
    epochs: int
    """Passes over a batch of rollouts."""
    minibatches: int
    """Optimizer steps of one pass."""
    skip_where_zero: str | None
    """A quantity of the experience: samples of which it is zero teach nothing and are left out of the update."""
    resample: int
    """At most so many further rounds of prompts replace those of which the update would learn nothing."""
    experience: tuple[Node, ...]
    update: tuple[Node, ...]
    experience_metrics: dict[str, str]
    """By the name of the metric, the quantity that is averaged over all that it has entries for."""
    update_metrics: dict[str, str]
    """The same for quantities of the update; a scalar is, like the loss, summed over micro-batches and ranks."""
    kinds: dict[str, Kind]
    """Of every quantity, given or made."""
    carried: frozenset[str]
    """Quantities that the update takes from the experience, or that were given."""

    @property
    def needs_values(self) -> bool:
        """Whether the policy must have a value head."""
        nodes = (*self.experience, *self.update)
        return any(node.operator.name == FORWARD and VALUES in node.wanted for node in nodes)

    @property
    def needs_reference(self) -> bool:
        """Whether the weights that the stage began with must be kept beside those that are trained."""
        return any(node.operator.name == REFERENCE for node in self.experience)

    @cached_property
    def selection(self) -> tuple[Node, ...]:
        """The nodes that `skip_where_zero` is made of."""
        wanted, nodes = {self.skip_where_zero}, list[Node]()
        for node in reversed(self.experience):
            if any(node.name + suffix in wanted for suffix in node.operator.gives):
                nodes.insert(0, node)
                wanted |= set(node.takes.values())
        return tuple(nodes)

    def run_selection(self, batch: Batch, given: Mapping[str, "Tensor"]) -> "Tensor":
        """The quantity `skip_where_zero` by itself, [N] or [K] as `kinds` says; all ranks call it together.

        With `resample` it needs no forward pass, so a round of rollouts can be judged before the step is whole.
        """
        assert self.skip_where_zero is not None, "only an algorithm with skip_where_zero selects"
        return _run(self.selection, batch, given)[self.skip_where_zero]

    def run_experience(self, batch: Batch, given: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
        """The given quantities and all that the experience makes of them. Call it without gradient."""
        return _run(self.experience, batch, given)

    def run_update(self, batch: Batch, carried: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
        """The carried quantities of a micro-batch and all that the update makes of them, `loss` among it."""
        return _run(self.update, batch, carried)


def _run(nodes: tuple[Node, ...], batch: Batch, known: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    quantities = dict(known)
    for node in nodes:
        quantities |= node.run(batch, quantities)
    return quantities
