"""The base of every config section: frozen, and closed to keys that it does not know."""

import typing
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

LARGEST = 10**15
"""Of whole numbers. Nothing is counted so far, and beyond it floats and other programs lose digits."""


class Section(BaseModel):
    """A part of the config tree. The string under a field is its help in the schema and in error messages."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _numbers_are_numbers(cls, data: Any) -> Any:
        """Refuse yes and no where a number is meant, which Python takes for 1 and 0, and numbers beyond all sense."""
        if not isinstance(data, dict):
            return data
        wrong: list[InitErrorDetails] = []
        for name, value in data.items():
            for each in value if isinstance(value, list) else [value]:
                fits = name not in cls.model_fields or takes_bool(cls.model_fields[name].annotation)
                if isinstance(each, bool) and not fits:
                    error = PydanticCustomError("no_number", "it should not be true or false")
                elif isinstance(each, int) and abs(each) > LARGEST:
                    error = PydanticCustomError(
                        "no_number", "it should be at most {largest}", {"largest": f"{LARGEST:,}"}
                    )
                else:
                    continue
                wrong.append(InitErrorDetails(type=error, loc=(name,), input=value))
        if wrong:
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return data


def takes_bool(annotation: Any) -> bool:
    """Whether yes and no are values of this type, or of a part of it."""
    return annotation is bool or any(takes_bool(part) for part in typing.get_args(annotation))
