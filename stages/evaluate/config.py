"""Settings of the evaluate stage."""

from typing import Self

from pydantic import Field, PositiveInt, model_validator

from data.section import Section
from stages.environments.config import EnvironmentConfig
from stages.rollout.config import EngineConfig, SamplingConfig
from stages.trainer.config import ModelConfig


class EvaluateConfig(Section):
    """What is measured on base, SFT and RL, on the same prompts and with the same random numbers."""

    num_prompts: PositiveInt = 512
    """Prompts of the evaluation split."""
    num_harder: PositiveInt = 256
    num_perturbed: PositiveInt = 256
    """Prompts for each kind of perturbation and for action noise."""
    samples_per_prompt: PositiveInt = 8
    """Samples for sampled success and pass@k."""
    num_sampled_prompts: PositiveInt = 128
    pass_at: tuple[int, ...] = (1, 2, 4, 8)
    action_noise: float = Field(default=0.02, ge=0, le=1)
    """Chance that a sampled token is replaced by a random one, in the robustness part."""
    sampling: SamplingConfig = SamplingConfig()
    """`temperature` is that of the sampled part; greedy parts use 0."""
    bootstrap_resamples: PositiveInt = 2000
    confidence: float = Field(default=0.95, gt=0, lt=1)

    @model_validator(mode="after")
    def _enough_samples(self) -> Self:
        if not self.pass_at or min(self.pass_at) < 1 or max(self.pass_at) > self.samples_per_prompt:
            raise ValueError(
                f"pass_at is {list(self.pass_at)}, but each k must be between 1 and samples_per_prompt, "
                f"which is {self.samples_per_prompt}"
            )
        return self


class StageConfig(Section):
    """All that the evaluate stage reads."""

    seed: int
    environment: EnvironmentConfig
    model: ModelConfig
    engine: EngineConfig = EngineConfig()
    evaluate: EvaluateConfig = Field(default=EvaluateConfig())
