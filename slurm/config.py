"""How a stage's job is asked for and watched. Nothing here changes a result, so it is no part of a fingerprint."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from data.section import Section
from slurm.ask.options import HIDE, SECRET, Value, check_additional, check_setup, one_line

Text = Annotated[str, AfterValidator(one_line)]


class SbatchConfig(Section):
    """Options that sbatch gets as they are. Those of a stage win over those of the site."""

    account: Text | None = None
    partition: Text | None = None
    qos: Text | None = None
    reservation: Text | None = None
    constraint: Text | None = None
    """Node features, in sbatch's syntax."""
    dependency: Text | None = None
    """For example afterok:1234."""
    comment: Text | None = None
    """Everyone on the cluster can read it."""
    mail_user: Text | None = None
    mail_type: Text | None = None
    additional: Annotated[dict[str, Value], AfterValidator(check_additional)] = Field(default_factory=dict)
    """More sbatch options by their long names, for example {"licenses": "x:1"}. true gives one without a value, false
    takes one of the site away."""

    def given(self) -> dict[str, tuple[str, Value]]:
        """By sbatch's long name: the key in this section, and the value."""
        named = {name: getattr(self, name) for name in SbatchConfig.model_fields if name != "additional"}
        options = {name.replace("_", "-"): (name, value) for name, value in named.items() if value is not None}
        return options | {name: (f"additional.{name}", value) for name, value in self.additional.items()}


class ResourcesConfig(SbatchConfig):
    """The shape of one stage's job."""

    nodes: PositiveInt = 1
    tasks_per_node: PositiveInt = 1
    """Ranks on a node, one a card."""
    cpus_per_task: PositiveInt | None = None
    """Cores a rank; None takes Slurm's default, or an equal share of this machine."""
    gpus_per_node: int = Field(default=0, ge=0)
    minutes: PositiveInt = 240
    shard_ranks: PositiveInt | None = None
    """Ranks over which the weights are sharded (FSDP); the others hold copies. None: as many as a supernode has of the
    job, or all without a topology."""


class ActorsConfig(ResourcesConfig):
    """The shape of one task of the array of actors, and how many there are. Read when rl.mode is asynchronous."""

    count: PositiveInt = 2
    """Tasks of the array, each with nodes x tasks_per_node actors; local processes where there is no Slurm. More may
    come (`qianka actors add`) and any may go while the run goes on."""


class Variable(Section):
    """An environment variable of every rank."""

    value: str | None
    """None removes it."""
    source: str
    """Who says so, for the next person who wonders."""


class WatchConfig(Section):
    """When a job that does not move is ended, and which nodes it avoids."""

    start_minutes: PositiveFloat = 10
    """For all ranks to have started. Then the nodes of those that have not are avoided, and a new job starts."""
    stall_minutes: PositiveFloat = 30
    """Without a step, a token or another sign of life, a rank dumps its stacks and ends the job."""
    slow_minutes: PositiveFloat = 120
    """The same for a save, a compilation or another long operation."""
    preflight_nodes: PositiveInt = 2
    """A job on so many nodes or more checks its nodes before it starts."""
    exclude_hours: PositiveFloat = 24
    """How long a node that failed is avoided."""


class SlurmConfig(SbatchConfig):
    """The executor, and what the site needs."""

    executor: Literal["auto", "local", "slurm"] = "auto"
    """auto: Slurm when `sbatch` is there and knows a cluster, else local processes."""
    signal_seconds: PositiveInt = 120
    """How long before the time limit the job is told to commit and requeue, whatever it has measured."""
    interface: str | None = None
    """Network interface for gloo and nccl (mccl) between nodes; None lets them resolve the host name."""
    topology: str = ""
    """File with the site's supernodes, nodes, cards and links; `qianka doctor --topology` drafts it."""
    setup: Annotated[list[str], AfterValidator(check_setup)] = Field(default_factory=list)
    """Lines of shell before the ranks start, such as `module load`."""
    environment: dict[str, Variable] = Field(default_factory=dict)
    """Environment variables of every rank."""
    watch: WatchConfig = WatchConfig()
    synth: ResourcesConfig = ResourcesConfig()
    sft: ResourcesConfig = ResourcesConfig()
    rl: ResourcesConfig = ResourcesConfig()
    evaluate: ResourcesConfig = ResourcesConfig()
    actors: ActorsConfig = ActorsConfig()

    def resources(self, stage: str) -> ResourcesConfig:
        """The shape of a stage's job."""
        return getattr(self, stage)

    def options(self, stage: str) -> dict[str, Value]:
        """Sbatch's options by their long names: the site's, and over them the stage's."""
        return {name: value for name, (_, value) in self.given_to(stage).items() if value is not False}

    def given_to(self, stage: str) -> dict[str, tuple[str, Value]]:
        """`options`, each with the key that gives it, such as slurm.rl.partition."""
        site = {name: (f"slurm.{key}", value) for name, (key, value) in self.given().items()}
        own = {name: (f"slurm.{stage}.{key}", value) for name, (key, value) in self.resources(stage).given().items()}
        return site | own

    @model_validator(mode="after")
    def _no_secrets(self) -> Self:
        for name, variable in self.environment.items():
            if variable.value is not None and SECRET.search(name):
                raise ValueError(f"environment.{name} would lie open in the command line and the run folder; {HIDE}")
        return self
