"""Settings of the synth stage."""

from pydantic import Field, PositiveInt

from data.section import Section
from stages.environments.config import EnvironmentConfig


class SynthConfig(Section):
    """How much data is written, and how it is cleaned and split."""

    num_tasks: PositiveInt = 30_000
    """Tasks to draw from a rule engine before duplicates are removed; ignored for the user's own rows."""
    workers: PositiveInt = 2
    """Processes a rank; the result does not depend on it."""
    block_tasks: PositiveInt = 2_000
    """Tasks of one block: the unit of work, and of restart."""
    shard_rows: PositiveInt = 10_000
    near_duplicate_similarity: float = Field(default=0.95, gt=0, le=1)
    """Prompts of at least this Jaccard similarity of character shingles count as one; 1 keeps all but exact ones."""
    validation_share: float = Field(default=0.02, ge=0, lt=1)
    evaluation_share: float = Field(default=0.05, gt=0, lt=1)
    harder_tasks: int = Field(default=512, ge=0)
    """Tasks for the generalisation part of the evaluation."""


class StageConfig(Section):
    """All that the synth stage reads."""

    seed: int
    environment: EnvironmentConfig
    synth: SynthConfig
