"""The config of a run: every section, composed into one tree, read from files and the command line."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from data.section import Section
from slurm.config import SlurmConfig
from stages.environments.config import ArithmeticConfig, EnvironmentConfig
from stages.evaluate.config import EvaluateConfig
from stages.evaluate.config import StageConfig as EvaluateStage
from stages.rl.config import RLConfig
from stages.rl.config import StageConfig as RLStage
from stages.rollout.config import EngineConfig
from stages.sft.config import SFTConfig
from stages.sft.config import StageConfig as SFTStage
from stages.synth.config import StageConfig as SynthStage
from stages.synth.config import SynthConfig
from stages.trainer.config import ModelConfig
from workflow.layers import Layer, is_override, merge, read_file, read_override
from workflow.mistakes import describe
from workflow.profile import with_profile
from workflow.settings import with_settings

INPUTS: dict[str, tuple[str, ...]] = {
    "synth": (),
    "sft": ("synth",),
    "rl": ("synth", "sft"),
    "evaluate": ("synth", "sft", "rl"),
}
"""The stages in their order, each with the stages whose manifests it reads."""

STAGE_CONFIGS: dict[str, type[Section]] = {
    "synth": SynthStage,
    "sft": SFTStage,
    "rl": RLStage,
    "evaluate": EvaluateStage,
}

CONFIGS = Path(__file__).parent / "configs"
DEFAULT = CONFIGS / "demo.yaml"
SCHEMA = CONFIGS / "schema.json"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class RunConfig(Section):
    """One run of the pipeline."""

    name: str = Field(pattern=NAME_PATTERN)
    """The run's folder under runs/; by default the name of the first config file."""
    source: str = ""
    """The first config file, filled in by Qianka: a run folder belongs to one config."""
    profile: str = ""
    """The site: local, slurm, metax, or a folder with a site.yaml, over which everything else wins. Only config files
    have it; the resolved config has its values instead."""
    seed: int = Field(default=1, ge=0, lt=2**31)
    environment: EnvironmentConfig = Field(default=ArithmeticConfig())
    model: ModelConfig = Field(default=ModelConfig())
    engine: EngineConfig = Field(default=EngineConfig())
    synth: SynthConfig = Field(default=SynthConfig())
    sft: SFTConfig = Field(default=SFTConfig())
    rl: RLConfig = Field(default=RLConfig())
    evaluate: EvaluateConfig = Field(default=EvaluateConfig())
    slurm: SlurmConfig = Field(default=SlurmConfig())

    def stage(self, name: str) -> Section:
        """The part of the config that a stage reads, and that its result depends on."""
        section = STAGE_CONFIGS[name]
        return section(**{key: getattr(self, key) for key in section.model_fields})

    def stage_json(self, name: str) -> dict[str, Any]:
        """`stage(name)` as JSON values."""
        return self.stage(name).model_dump(mode="json")


def load(arguments: Sequence[str], extra: Mapping[str, Any] | None = None) -> RunConfig:
    """Read config files and overrides `dotted.key=value`, the later over the earlier; no file means the default one.

    Below them all are the settings of the algorithm and the profile that they name.
    `extra` is laid over them (Snakemake's --config). Raises ValueError that names the key, its source and the valid
    keys.
    """
    files = [argument for argument in arguments if not is_override(argument)] or [str(DEFAULT)]
    layers = [read_file(Path(file)) for file in files]
    layers += [read_override(argument) for argument in arguments if is_override(argument)]
    if extra:
        layers.append(Layer("--config", dict(extra)))
    layers = with_profile(with_settings(layers))
    for layer in layers:
        if "source" in layer.values and Path(layer.source).name != "config.json":
            raise ValueError(f"{layer.where(('source',))}: `source` is filled in by Qianka; remove it")
    first = Path(files[0])
    values = {"name": re.sub(r"[^A-Za-z0-9._-]+", "-", first.stem), "source": identity(first), **merge(layers)}
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ValueError(describe(error, RunConfig, values, layers)) from error


def identity(file: Path) -> str:
    """How a config file is remembered: relative to the working directory or to Qianka where it can be."""
    path = file.resolve()
    for folder in (Path.cwd(), CONFIGS.parent.parent):
        if path.is_relative_to(folder):
            return path.relative_to(folder).as_posix()
    return os.fspath(path)


def schema_text() -> str:
    """The JSON schema of the whole tree, for editors and for people: workflow/configs/schema.json."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunConfig.model_json_schema()}
    schema["required"] = []  # a file may leave out the name
    return json.dumps(schema, indent=1) + "\n"
