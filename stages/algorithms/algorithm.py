"""An algorithm that was loaded and checked: two lists of nodes in an order in which each can run."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from stages.algorithms.execute import Graph
from stages.algorithms.kinds import Batch, Kind
from stages.algorithms.kl import KL
from stages.algorithms.node import FORWARD, REFERENCE, Node
from stages.algorithms.order import reached

if TYPE_CHECKING:
    from torch import Tensor

LOSS = "loss"
"""Name of the update's node that is minimised."""
VALUES = "values"
"""The output of `policy_forward` that needs a critic."""


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

    @property
    def corrects_for_age(self) -> bool:
        """Whether the loss has a ratio to the policy that played, so that samples of older weights count for less.

        A metric corrects nothing, nor does a KL term: it holds the policy near that one, and weighs no sample.
        """
        nodes = (*self.experience, *self.update)
        learned = reached(nodes, {LOSS})
        ratios = [node for node in nodes if node.name in learned and node.operator.name not in KL]
        return any("rollout_logprobs" in node.takes.values() for node in ratios)

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
        return self._selection.run(batch, given, self.kinds, {self.skip_where_zero})[self.skip_where_zero]

    def run_experience(self, batch: Batch, given: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
        """The given quantities and all that the experience makes of them. Call it without gradient, on all ranks.

        Raises ArithmeticError when what the update takes, or what decides on skipping, is not finite.
        """
        skip = [] if self.skip_where_zero is None else [self.skip_where_zero]
        return self._experience.run(batch, given, self.kinds, self.carried.union(skip))

    def run_update(self, batch: Batch, carried: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
        """The carried quantities of a micro-batch and all that the update makes of them, `loss` among it.

        Raises ArithmeticError when the loss is not finite, ValueError when the gradient is lost on the way to it.
        """
        made = self._update.run(batch, carried, self.kinds, {LOSS})
        if not made[LOSS].requires_grad:
            self._check_gradient(made)
        return made

    def _check_gradient(self, made: Mapping[str, "Tensor"]) -> None:
        """Raises ValueError that names where the gradient of the policy ends, if there is one."""
        for node in self.update:
            outputs = [made[name] for suffix in node.operator.gives if (name := node.name + suffix) in made]
            takes = any(made[source].requires_grad for source in node.takes.values())
            if takes and not any(output.requires_grad for output in outputs):
                raise ValueError(
                    f"{node.where}: {node.operator.name} takes what has a gradient and gives what has none, so the "
                    "loss has none either: do without .detach(), .item(), .data and conversions to whole numbers"
                )

    @cached_property
    def _experience(self) -> Graph:
        return Graph(self.experience)

    @cached_property
    def _selection(self) -> Graph:
        return Graph(self.selection)

    @cached_property
    def _update(self) -> Graph:
        return Graph(self.update)
