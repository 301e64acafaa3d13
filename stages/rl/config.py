"""Settings of the rl stage."""

from pydantic import Field, PositiveInt, model_validator

from data.section import Section
from stages.environments.config import EnvironmentConfig, RewardConfig
from stages.rollout.config import EngineConfig, SamplingConfig
from stages.trainer.config import CheckpointConfig, OptimizerConfig


class RLOptimizerConfig(OptimizerConfig):
    """AdamW at a constant rate: the reward moves the target, so there is no end to decay towards."""

    warmup_steps: int = Field(default=5, ge=0)
    decay: str = Field(default="constant", pattern="^(cosine|constant)$")
    weight_decay: float = Field(default=0.0, ge=0)


class RLCheckpointConfig(CheckpointConfig):
    """A step of reinforcement learning is long, so it is committed more often."""

    every_steps: PositiveInt = 5


class RLConfig(Section):
    """Reinforcement learning from the verifier's reward, synchronous mode."""

    algorithm: str = "dr_grpo"
    """A shipped algorithm or the path of a YAML file. Its `settings` are the defaults of this section."""
    steps: PositiveInt = 40
    prompts_per_step: PositiveInt = 32
    """Prompts of one step over all ranks."""
    samples_per_prompt: PositiveInt = 8
    sampling: SamplingConfig = SamplingConfig()
    rewards: tuple[RewardConfig, ...] = (RewardConfig(term="verifier"),)
    """The terms of the reward, which is their weighted sum; by default the environment's own."""
    micro_batch_tokens: PositiveInt = 8192
    """Tokens of one forward pass on one rank."""
    learning_rate: float = Field(default=2e-4, gt=0)
    optimizer: RLOptimizerConfig = RLOptimizerConfig()
    checkpoint: RLCheckpointConfig = RLCheckpointConfig()
    activation_checkpointing: bool = False

    @model_validator(mode="after")
    def _explores(self) -> "RLConfig":
        if self.sampling.temperature == 0:
            raise ValueError("rl.sampling.temperature: 0 is greedy, and then all samples of a prompt are the same")
        return self


class StageConfig(Section):
    """All that the rl stage reads."""

    seed: int
    environment: EnvironmentConfig
    engine: EngineConfig = EngineConfig()
    rl: RLConfig = Field(default=RLConfig())
