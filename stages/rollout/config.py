"""How completions are sampled."""

from pydantic import Field, PositiveInt

from data.section import Section


class SamplingConfig(Section):
    """Length, temperature and batch shape of generation."""

    max_new_tokens: PositiveInt = 40
    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    slots: PositiveInt = 256
    """Sequences that one rank generates side by side; a free slot is refilled from the waiting requests."""
