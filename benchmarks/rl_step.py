"""What the benchmarks of a step of reinforcement learning share: a fine-tuned model, and the step itself.

The model is the demo's, fine-tuned on the demo's data until its answers have ragged lengths and are partly right; made
once and kept under benchmarks/.cache.
"""

import time
from pathlib import Path
from typing import Any

import torch

from checkpoints.manifest import NAME, Provenance, Result
from data.job import Job
from data.rows import Row
from data.shards import read_split
from data.tokenizer import load_tokenizer
from stages.algorithms.load import load_algorithm
from stages.environments.registry import make
from stages.rl.config import StageConfig
from stages.rl.engine import refresh, torch_engine
from stages.rl.experience import make_experience
from stages.rl.rollouts import Player, Task
from stages.rl.update import update
from stages.sft.config import StageConfig as SFTStage
from stages.sft.run import run as sft
from stages.synth.config import StageConfig as SynthStage
from stages.synth.run import run as synth
from stages.trainer.config import ArchitectureConfig
from stages.trainer.learner import Learner
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

    def rows(self, count: int) -> list[Row]:
        """The first of the training split."""
        return read_split(self.data.folder, "train").slice(0, count).to_pylist()


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


def stage_config(steps: int) -> StageConfig:
    """The rl stage on the demo's environment: 32 prompts x 8 samples a step."""
    sampling = {"max_new_tokens": MOST_TOKENS}
    rl = {"steps": steps, "prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES, "sampling": sampling}
    return StageConfig.model_validate({"seed": 1, "environment": ENVIRONMENT, "rl": rl})


class Step:
    """A step of the rl stage without its files: generation, reward, update. Make it inside `distributed`."""

    def __init__(self, warm: Warm, job: Job, algorithm: str = "dr_grpo") -> None:
        """The policy is that of `warm`; every step plays other prompts."""
        self.config = stage_config(1)
        rl = self.config.rl
        self.algorithm = load_algorithm(algorithm)
        self.tokenizer = load_tokenizer(warm.model)
        policy = load_policy(warm.model, 1, value_head=self.algorithm.needs_values)
        self.learner = Learner(policy, rl.optimizer, rl.learning_rate, 100, job)
        self.engine = torch_engine(self.learner, self.tokenizer)
        self.player = Player(self.config, self.engine, self.tokenizer, make(self.config.environment), job)
        self.rows = warm.rows(100 * PROMPTS)
        self.done = 0

    def play(self) -> Any:
        """The trajectories of the next prompts by the policy of now."""
        first = self.done * PROMPTS
        self.done += 1
        refresh(self.engine, self.learner, self.done)
        tasks = [Task(slot, row) for slot, row in enumerate(self.rows[first : first + PROMPTS])]
        return self.player.play(self.done, tasks)

    def learn(self, trajectories: Any) -> dict[str, float]:
        """Experience and update; its metrics."""
        rl, policy = self.config.rl, self.learner.policy
        experience = make_experience(policy, self.algorithm, trajectories, rl)
        return experience.metrics | update(self.learner, self.algorithm, experience, rl, (1, self.done))


def gemm_rate(seconds: float = 0.5) -> float:
    """Operations a second of large float32 matrix products, on the threads that are set: what a model cannot exceed."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    torch.mm(left, right)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        torch.mm(left, right)
        count += 1
    return count * 2 * 1024**3 / (time.perf_counter() - start)
