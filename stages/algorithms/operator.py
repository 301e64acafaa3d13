"""An operator is one decorated function. Its signature says what it takes, which values it has, and what it gives."""

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_origin

from pydantic import PydanticUserError

from data.values import typed
from stages.algorithms.kinds import Batch, Kind

Function = TypeVar("Function", bound=Callable[..., Any])

OPERATORS: dict[str, "Operator"] = {}
"""The shipped operators by name."""
_registry = ContextVar("registry", default=OPERATORS)
"""Where `operator` puts what it decorates."""


@dataclass(frozen=True)
class Operator:
    """What a function's signature says."""

    name: str
    function: Callable[..., Any]
    takes_batch: bool
    inputs: dict[str, Kind]
    values: dict[str, inspect.Parameter]
    outputs: dict[str, Kind]
    """By name; the one output of a function that returns a single tensor has the name ''."""
    whole_batch: bool
    """It compares samples with each other, so it must see the whole batch: experience only."""

    @property
    def file(self) -> str:
        """The Python file that it stands in."""
        return self.function.__code__.co_filename

    @property
    def gives(self) -> dict[str, Kind]:
        """Its outputs as they are written after the name of a node: `` or `.logprobs`."""
        return {f".{name}" if name else "": kind for name, kind in self.outputs.items()}

    def check_value(self, name: str, value: Any) -> Any:
        """`value` in the type of the parameter. Raises ValueError that says what is wrong with it."""
        return typed(self.values[name].annotation, value)

    @property
    def required_values(self) -> list[str]:
        """Values that have no default."""
        return [name for name, parameter in self.values.items() if parameter.default is inspect.Parameter.empty]


def operator(*, whole_batch: bool = False) -> Callable[[Function], Function]:
    """Make a function an operator of its own name. The function itself stays as it is.

    Its parameters: first `batch: Batch` if it needs one; then its inputs, annotated PerToken, PerSample, PerGroup or
    Scalar; then, after `*`, its values, of any type that YAML has. It returns one quantity, or a NamedTuple of them.
    """

    def register(function: Function) -> Function:
        described, registry = describe(function, whole_batch), _registry.get()
        if described.name in registry:
            there = registry[described.name].file
            raise TypeError(f"there is an operator {described.name} already, in {there}; give this one another name")
        registry[described.name] = described
        return function

    return register


@contextmanager
def registered_in(registry: dict[str, Operator]) -> Generator[None]:
    """Within it, what is decorated goes into `registry`."""
    token = _registry.set(registry)
    try:
        yield
    finally:
        _registry.reset(token)


def describe(function: Callable[..., Any], whole_batch: bool) -> Operator:
    """Read a function's signature. Raises TypeError where it does not follow the rules of `operator`."""
    signature = inspect.signature(function, eval_str=True)
    parameters = list(signature.parameters.values())
    name = function.__name__
    takes_batch = bool(parameters) and parameters[0].annotation is Batch
    rest = parameters[1:] if takes_batch else parameters
    inputs = {p.name: _input(p, name) for p in rest if p.kind is not p.KEYWORD_ONLY}
    values = {p.name: _value(p, name) for p in rest if p.kind is p.KEYWORD_ONLY}
    return Operator(name, function, takes_batch, inputs, values, _outputs(signature, name), whole_batch)


def providers(operators: Mapping[str, Operator], kind: Kind, output: str) -> list[str]:
    """Operators that give a quantity of `kind`, as a user would write them; those with an `output` so named first."""
    found = [pair for op in operators.values() for pair in _gives(op, kind)]
    named = [text for name, text in found if name == output]
    return sorted(named) or sorted({text for _, text in found})


def _gives(op: Operator, kind: Kind) -> Iterable[tuple[str, str]]:
    for name, its_kind in op.outputs.items():
        if its_kind is kind:
            yield name, f"{op.name}.{name}" if name else op.name


def _input(parameter: inspect.Parameter, name: str) -> Kind:
    where = f"{name}({parameter.name})"
    if parameter.annotation is Batch:
        raise TypeError(f"operator {where}: the batch comes first")
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TypeError(f"operator {where}: * and ** say nothing about what the operator takes; name its inputs")
    if parameter.default is not parameter.empty:
        raise TypeError(f"operator {where}: an input has no default; what has one is a value, after a `*`")
    return _kind(parameter.annotation, where)


def _value(parameter: inspect.Parameter, name: str) -> inspect.Parameter:
    where, annotation = f"{name}({parameter.name})", parameter.annotation
    if annotation is parameter.empty:
        raise TypeError(f"operator {where}: annotate the value, for example `{parameter.name}: float`")
    try:
        typed(annotation, None if parameter.default is parameter.empty else parameter.default)
    except PydanticUserError as error:
        raise TypeError(f"operator {where}: a value is of a type that YAML has, not {annotation}") from error
    except ValueError as error:
        if parameter.default is not parameter.empty:
            raise TypeError(f"operator {where}: its default is {error}") from error
    return parameter


def _outputs(signature: inspect.Signature, name: str) -> dict[str, Kind]:
    returned = signature.return_annotation
    fields = getattr(returned, "_fields", None)
    if fields is None:
        return {"": _kind(returned, f"{name}, what it returns")}
    annotations = inspect.get_annotations(returned, eval_str=True)
    return {field: _kind(annotations[field], f"{name}.{field}") for field in fields}


def _kind(annotation: Any, where: str) -> Kind:
    """The kind in PerToken and its like, also in `PerToken | None`."""
    options = [annotation] if get_origin(annotation) is None or hasattr(annotation, "__metadata__") else []
    options += [option for option in get_args(annotation) if option is not type(None)]
    for option in options:
        for note in getattr(option, "__metadata__", ()):
            if isinstance(note, Kind):
                return note
    there = "" if annotation is inspect.Parameter.empty else f", not {annotation}"
    raise TypeError(f"operator {where}: annotate it PerToken, PerSample, PerGroup or Scalar{there}")
