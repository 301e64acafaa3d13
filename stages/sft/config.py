"""Settings of the sft stage."""

from pydantic import Field, PositiveInt

from data.section import Section
from stages.trainer.config import CheckpointConfig, ModelConfig, OptimizerConfig


class SFTConfig(Section):
    """Supervised fine-tuning on the completions of the training split."""

    steps: PositiveInt = 800
    batch_sequences: PositiveInt = 32
    """Sequences of one optimizer step over all ranks."""
    micro_batch_tokens: PositiveInt = 8192
    """Tokens of one forward pass on one rank; a step takes as many passes as it needs (gradient accumulation)."""
    max_tokens: PositiveInt = 256
    """The context: a longer sequence is an error that names the row."""
    learning_rate: float = Field(default=3e-3, gt=0)
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    validate_every_steps: PositiveInt = 100
    activation_checkpointing: bool = False
    """Recompute each layer in the backward pass: less memory for about a third more time."""


class StageConfig(Section):
    """All that the sft stage reads."""

    seed: int
    model: ModelConfig
    sft: SFTConfig = Field(default=SFTConfig())
