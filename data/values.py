"""Values that a config gives to a Python function: checked against the types of its parameters."""

from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from data.section import takes_bool


def typed(annotation: Any, given: Any) -> Any:
    """`given` in the type of the annotation. Raises ValueError that says what is wrong with it.

    As in a config section, yes and no are no numbers, and a number is finite. PydanticUserError when the annotation is
    no type that YAML has.
    """
    adapter = TypeAdapter[Any](annotation, config=ConfigDict(allow_inf_nan=False))
    if isinstance(given, bool) and not takes_bool(annotation):
        raise ValueError(f"{given!r}, but it should not be true or false")
    try:
        return adapter.validate_python(given)
    except ValidationError as error:
        raise ValueError(f"{given!r}: {error.errors()[0]['msg'].lower()}") from error
