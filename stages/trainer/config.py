"""Which model is trained, and how its optimizer steps."""

from pydantic import Field, PositiveInt

from data.section import Section


class ArchitectureConfig(Section):
    """A Qwen3 decoder with random weights, for runs that start from nothing."""

    hidden_size: PositiveInt = 96
    num_layers: PositiveInt = 3
    num_heads: PositiveInt = 4
    num_key_value_heads: PositiveInt = 2
    intermediate_size: PositiveInt = 256
    max_positions: PositiveInt = 256
    alphabet: str = "0123456789+-*/=;:,.>?()<ABCDEFGHIJKLMNOPQRSTUVWXYZ _"
    """The characters of the tokenizer, one token each, after <pad>, <bos> and <eos>."""


class ModelConfig(Section):
    """Where the weights and the tokenizer come from."""

    folder: str = ""
    """A Hugging Face folder (config.json, safetensors, tokenizer); empty for random weights of `architecture`."""
    architecture: ArchitectureConfig = ArchitectureConfig()
    """Used only when `folder` is empty."""


class OptimizerConfig(Section):
    """AdamW (Loshchilov and Hutter 2019) with warm-up, a schedule, and clipping of the global gradient norm.

    The learning rate is not here but a field of the stage's section (`rl.learning_rate=3e-4`), and `Learner` takes it
    as an argument of its own.
    """

    warmup_steps: int = Field(default=30, ge=0)
    decay: str = Field(default="cosine", pattern="^(cosine|constant)$")
    """The schedule after warm-up; cosine falls to `final_share` of the learning rate at the last step."""
    final_share: float = Field(default=0.1, ge=0, le=1)
    weight_decay: float = Field(default=0.01, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    max_gradient_norm: float = Field(default=1.0, gt=0)


class CheckpointConfig(Section):
    """How often progress is committed."""

    every_steps: PositiveInt = 100
    keep: PositiveInt = 2
    """How many committed steps stay on disk."""
