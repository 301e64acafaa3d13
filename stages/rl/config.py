"""Settings of the rl stage."""

from pydantic import Field, PositiveInt

from data.section import Section
from stages.environments.config import EnvironmentConfig
from stages.rollout.config import SamplingConfig
from stages.trainer.config import CheckpointConfig, OptimizerConfig


class RLConfig(Section):
    """Reinforcement learning from the verifier's reward, synchronous mode."""

    algorithm: str = "dr_grpo"
    """A shipped algorithm (ppo, grpo, dr_grpo, rloo) or the path of a YAML file."""
    steps: PositiveInt = 40
    prompts_per_step: PositiveInt = 32
    """Prompts of one step over all ranks."""
    samples_per_prompt: PositiveInt = 8
    sampling: SamplingConfig = SamplingConfig()
    micro_batch_tokens: PositiveInt = 8192
    """Tokens of one forward pass on one rank."""
    learning_rate: float = Field(2e-4, gt=0)
    optimizer: OptimizerConfig = OptimizerConfig(warmup_steps=5, decay="constant", weight_decay=0.0)
    checkpoint: CheckpointConfig = CheckpointConfig(every_steps=5)
    activation_checkpointing: bool = False


class StageConfig(Section):
    """All that the rl stage reads."""

    seed: int
    environment: EnvironmentConfig
    rl: RLConfig = Field(default=RLConfig())
