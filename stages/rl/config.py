"""Settings of the rl stage."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

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


class AsynchronousConfig(Section):
    """How actors and learners go apart. Read in asynchronous mode only."""

    max_staleness: PositiveInt = 2
    """Updates between the weights that made the oldest token of a sample and those that learn from it, at most. Time in
    queues counts."""
    stale: Literal["requeue", "drop", "keep"] = "requeue"
    """What becomes of samples that are older when their turn comes. requeue: they are thrown away, and the prompt is
    played again at once; drop: the same, behind all prompts that wait; keep: they are learned from, by an algorithm
    that corrects for their age."""
    max_attempts: PositiveInt = 4
    """So often a prompt may be lost with its actor, be too old or fail to be graded, before it is set aside."""
    lease_seconds: PositiveFloat = 30.0
    """Without a sign of life of an actor, until its prompts are given to others."""
    partial_tokens: PositiveInt | None = None
    """After so many tokens of a sample an actor hands its prompt back, half played, for any actor to go on with."""
    store_bytes: PositiveInt = 2**30
    """Of samples that wait to be learned from, on each learner rank. With more, actors wait."""
    patience_minutes: PositiveFloat = 30.0
    """An actor that finds no learner for so long ends."""
    tls: bool = False
    """Encrypt all that goes between processes, with a certificate that each start makes for itself."""
    environment_calls: PositiveInt = 16
    """Answers of a slow environment, and terms of the reward, that an actor has under way, each in a process of its
    own. More than there are cores are of use where they wait for something."""
    evaluate_every: int = Field(default=0, ge=0)
    """Versions between two that the evaluator scores while training goes on; 0: there is no evaluator."""
    evaluate_prompts: PositiveInt = 128
    """Of the validation split, which is neither trained on nor scored by the evaluate stage."""


class RLConfig(Section):
    """Reinforcement learning from the verifier's reward."""

    mode: Literal["synchronous", "asynchronous", "colocated"] = "synchronous"
    """synchronous: each rank plays, then learns; repeatable bit for bit. colocated: the same, and what a phase has no
    use for leaves the card. asynchronous: actors play in processes of their own while the learners learn."""
    asynchronous: AsynchronousConfig = AsynchronousConfig()
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
