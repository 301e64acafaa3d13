"""The base of every config section: frozen, and closed to keys that it does not know."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the config tree. The string under a field is its help in the schema and in error messages."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
