"""How a stage's job is asked for. Nothing here changes a result, so nothing here is part of a fingerprint."""

from typing import Literal

from pydantic import Field, PositiveInt

from data.section import Section


class ResourcesConfig(Section):
    """The shape of one stage's job."""

    nodes: PositiveInt = 1
    tasks_per_node: PositiveInt = 1
    """Ranks on a node, one a card."""
    cpus_per_task: PositiveInt | None = None
    """Cores a rank; None takes Slurm's default, or an equal share of this machine."""
    gpus_per_node: int = Field(default=0, ge=0)
    minutes: PositiveInt = 240
    partition: str | None = None


class SlurmConfig(Section):
    """The executor and the site's Slurm settings."""

    executor: Literal["auto", "local", "slurm"] = "auto"
    """auto: Slurm when `sbatch` is there and knows a cluster, else local processes."""
    account: str | None = None
    partition: str | None = None
    signal_seconds: PositiveInt = 120
    """How long before the time limit the job is told to commit and requeue."""
    interface: str | None = None
    """Network interface for gloo between nodes; None lets gloo resolve the host name."""
    additional: dict[str, str | int | bool] = Field(default_factory=dict)
    """More sbatch options by their long names, for example {"qos": "high"}."""
    synth: ResourcesConfig = ResourcesConfig()
    sft: ResourcesConfig = ResourcesConfig()
    rl: ResourcesConfig = ResourcesConfig()
    evaluate: ResourcesConfig = ResourcesConfig()
