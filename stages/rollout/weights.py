"""The policy's weights on their way into an engine."""

from collections.abc import Iterable, Iterator, Mapping

from torch import Size, Tensor


def checked(weights: Iterable[tuple[str, Tensor]], expected: Mapping[str, Size]) -> Iterator[tuple[str, Tensor]]:
    """Pass `weights` on. Raises ValueError for a name that is not expected or comes twice, a shape, and what lacks."""
    waiting = dict(expected)
    for name, tensor in weights:
        if name not in waiting:
            raise ValueError(f"the policy's weight {name} is not in the engine's model, or came twice")
        if waiting[name] != tensor.shape:
            raise ValueError(f"{name}: the policy's weight is {tensor.shape}, the engine's {waiting[name]}")
        del waiting[name]
        yield name, tensor
    if waiting:
        raise ValueError(f"the policy's weights lack {sorted(waiting)}")
