"""What the benchmarks of a step of reinforcement learning share: a fine-tuned model, and the stage's config.

The model is the demo's, fine-tuned on the demo's data until its answers have ragged lengths and are partly right; made
once and kept under benchmarks/.cache.
"""

import time
from pathlib import Path
from typing import Any

import torch

from checkpoints.manifest import NAME, Provenance, Result
from data.job import Job
from stages.rl.config import StageConfig
from stages.sft.config import StageConfig as SFTStage
from stages.sft.run import run as sft
from stages.synth.config import StageConfig as SynthStage
from stages.synth.run import run as synth
from stages.trainer.config import ArchitectureConfig
from stages.trainer.linear import use_onednn
from stages.trainer.policy import load_policy

CACHE = Path(__file__).parent / ".cache"
PROMPTS, SAMPLES, MOST_TOKENS = 32, 8, 40
ENVIRONMENT = {"name": "arithmetic"}
DEMO = ArchitectureConfig(hidden_size=96, num_layers=3, num_heads=4, num_key_value_heads=2, intermediate_size=256)
LARGER = ArchitectureConfig(hidden_size=256, num_layers=5, num_heads=8, num_key_value_heads=4, intermediate_size=704)
"""3.7M parameters."""


class Warm:
    """A fine-tuned model and the rows that it was tuned on."""

    def __init__(self, name: str, architecture: ArchitectureConfig, steps: int, learning_rate: float) -> None:
        """Made when it is not there yet, which takes minutes."""
        self.folder = CACHE / name
        self.data = _stage(
            self.folder / "synth",
            synth,
            SynthStage.model_validate({"seed": 1, "environment": ENVIRONMENT, "synth": {"num_tasks": 8000}}),
            {},
        )
        settings = {
            "steps": steps,
            "batch_sequences": 16,
            "learning_rate": learning_rate,
            "validate_every_steps": steps,
        }
        config = {"seed": 1, "model": {"architecture": architecture.model_dump()}, "sft": settings}
        self.tuned = _stage(self.folder / "sft", sft, SFTStage.model_validate(config), {"synth": self.data})

    @property
    def model(self) -> Path:
        """A Hugging Face folder."""
        return self.tuned.folder / "model"

    @property
    def parameters(self) -> int:
        """Weights that each token is multiplied with, those of the head among them."""
        return sum(weight.numel() for weight in load_policy(self.model, 0).model.parameters() if weight.dim() > 1)


def demo() -> Warm:
    """0.3M parameters, as in `make run`."""
    return Warm("demo", DEMO, 1000, 2e-3)


def larger() -> Warm:
    """3.7M parameters."""
    return Warm("larger", LARGER, 300, 1e-3)


def _stage(folder: Path, run: Any, config: Any, inputs: dict[str, Result]) -> Result:
    if not (folder / NAME).exists():
        open_attempt(folder)
        run(config, inputs, folder, Job())
    return Result(folder / NAME)


def open_attempt(folder: Path) -> None:
    """Make `folder` one that a stage can run in."""
    folder.mkdir(parents=True, exist_ok=True)
    name = folder.name
    Provenance(
        stage=name, attempt=name, config={}, config_digest="", code_digest="of a benchmark", code_version=""
    ).write(folder)


def stage_config(steps: int, seed: int = 1, algorithm: str = "dr_grpo") -> StageConfig:
    """The rl stage on the demo's environment: 32 prompts x 8 samples a step."""
    sampling = {"max_new_tokens": MOST_TOKENS}
    rl = {
        "algorithm": algorithm,
        "steps": steps,
        "prompts_per_step": PROMPTS,
        "samples_per_prompt": SAMPLES,
        "sampling": sampling,
    }
    return StageConfig.model_validate({"seed": seed, "environment": ENVIRONMENT, "rl": rl})


@torch.no_grad()
def gemm_rate(seconds: float = 0.5) -> float:
    """Operations a second of large float32 products, on the threads that are set: what a model cannot exceed."""
    layer, inputs = torch.nn.Linear(1024, 1024, bias=False), torch.randn(1024, 1024)
    use_onednn(layer)
    layer(inputs)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        layer(inputs)
        count += 1
    return count * 2 * 1024**3 / (time.perf_counter() - start)
