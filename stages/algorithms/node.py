"""A node of the graph: an operator with its inputs named and its values set."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stages.algorithms.kinds import Batch, Kind
from stages.algorithms.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

FORWARD = "policy_forward"
REFERENCE = "reference_forward"


class NodeError(RuntimeError):
    """An operator failed, and was not tried again."""


@dataclass(frozen=True)
class Node:
    """One operator at work."""

    name: str
    where: str
    """The file, the section and the name, as messages say it."""
    operator: Operator
    takes: dict[str, str]
    """By input, the quantity it gets: one of the given, `node`, or `node.output`."""
    values: dict[str, Any]
    retries: int = 0
    """How often it is tried again after an error."""
    seconds: float | None = None
    """How long it may take, all attempts together."""
    wanted: frozenset[str] = frozenset()
    """Names of its outputs that anyone takes."""

    @property
    def in_order(self) -> bool:
        """Whether it runs the policy or talks to other ranks, and so at the same place on all of them."""
        return self.operator.whole_batch or self.operator.name in (FORWARD, REFERENCE)

    def run(self, batch: Batch, quantities: Mapping[str, "Tensor"], sizes: Mapping[Kind, int]) -> dict[str, "Tensor"]:
        """Its outputs, by the names under which others take them; `sizes` has the length of each kind but a scalar.

        Raises NodeError when the operator fails in its last attempt, and ValueError when it did not keep its promise.
        """
        leading = [replace(batch, wanted=self.wanted) if self.wanted else batch] if self.operator.takes_batch else []
        inputs: dict[str, Any] = {name: quantities[source] for name, source in self.takes.items()}
        versions = {name: tensor._version for name, tensor in inputs.items()}
        result = self._attempts(*leading, **inputs, **self.values)
        for name, tensor in inputs.items():
            if tensor._version != versions[name]:
                raise ValueError(
                    f"{self.where}: {self.takes[name]} was changed in place, by {self.operator.name} or one that ran "
                    "beside it, and others take it too; make a new tensor (x.clamp() instead of x.clamp_())"
                )
        if "" in self.operator.outputs:
            outputs = {"": result}
        else:
            outputs = {output: getattr(result, output) for output in self.wanted}
        for output, found in outputs.items():
            self._check(output, found, sizes)
        return {f"{self.name}.{output}" if output else self.name: found for output, found in outputs.items()}

    def _attempts(self, *leading: Batch, **named: Any) -> Any:
        if self.operator.name in (FORWARD, REFERENCE):
            return self.operator.function(*leading)  # what goes wrong there is the policy's, and keeps its name
        for attempt in range(self.retries + 1):
            try:
                return self.operator.function(*leading, **named)
            except (Exception, SystemExit) as error:  # sys.exit(0) in an operator would end the job as if all were well
                text = f"{self.where}: {self.operator.name} failed in attempt {attempt + 1} of {self.retries + 1}: "
                text += f"{type(error).__name__}: {error}"
                if attempt == self.retries:
                    raise NodeError(text) from error
                print(f"{text}; it is tried again", flush=True)
        raise AssertionError("the last attempt returns or raises")

    def _check(self, output: str, found: Any, sizes: Mapping[Kind, int]) -> None:
        """The shape is what the operator's annotation promises: everything after it would be wrong, or broadcast."""
        kind = self.operator.outputs[output]
        wanted = () if kind is Kind.SCALAR else (sizes[kind],)
        shape = getattr(found, "shape", None)
        if shape == wanted:
            return
        what = f"a tensor of shape {list(shape)}" if shape is not None else f"{type(found).__name__}"
        raise ValueError(
            f"{self.where}: {self.operator.name} gave {what}{f' for {output}' if output else ''}, where {kind} means "
            f"the shape {list(wanted)}"
        )
