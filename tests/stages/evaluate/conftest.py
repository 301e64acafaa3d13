"""Finished synth, sft and rl stages as evaluate finds them, at the size of a test: real files, models of one layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from checkpoints.manifest import NAME, Provenance, Result, commit_manifest
from data.job import Job
from data.metrics import Metrics
from data.packing import pack
from data.rows import SCHEMA, row_id
from data.shards import write_shard
from data.tokenizer import character_tokenizer, encode_completion, encode_prompt, tokenizer_digest
from data.trajectories import Trajectories, write_trajectories
from data.warnings import Warned, write_warnings
from stages.environments.config import ArithmeticConfig
from stages.environments.hash import environment_hash
from stages.environments.registry import make
from stages.evaluate.config import EvaluateConfig, StageConfig
from stages.evaluate.run import run
from stages.rollout.config import SamplingConfig
from stages.trainer.config import ArchitectureConfig, ModelConfig
from stages.trainer.policy import Policy, load_policy

ENVIRONMENT = ArithmeticConfig()
MODEL = ModelConfig(
    architecture=ArchitectureConfig(
        hidden_size=32, num_layers=1, num_heads=1, num_key_value_heads=1, intermediate_size=32, max_positions=64
    )
)


@pytest.fixture(scope="session")
def config() -> StageConfig:
    return StageConfig(
        seed=1,
        environment=ENVIRONMENT,
        model=MODEL,
        evaluate=EvaluateConfig(
            num_prompts=40,
            num_harder=10,
            num_perturbed=8,
            num_sampled_prompts=6,
            samples_per_prompt=4,
            pass_at=(1, 2, 4),
            sampling=SamplingConfig(max_new_tokens=6, slots=16),
            bootstrap_resamples=200,
        ),
    )


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """The sft model answers `>3` whatever it is asked, the rl model `>0`; each is right in about one task of ten."""
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("run")
    synth = _synth(run / "synth")
    sft = _trained(run / "sft", {"synth": synth}, ">3", {"loss": 0.5, "validation_loss": 0.6})
    rl = _trained(run / "rl", {"synth": synth, "sft": sft}, ">0", {"reward": 0.5, "entropy": 0.2})
    return {"synth": synth, "sft": sft, "rl": rl}


@pytest.fixture(scope="session")
def evaluate_attempt(inputs: dict[str, Result], tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes a new attempt folder of the evaluate stage."""
    return lambda: open_attempt(tmp_path_factory.mktemp("evaluate"), "evaluate", inputs)


@pytest.fixture(scope="session")
def evaluated(config: StageConfig, inputs: dict[str, Result], evaluate_attempt: Callable[[], Path]) -> Path:
    """The folder of a finished evaluation."""
    folder = evaluate_attempt()
    run(config, inputs, folder, Job())
    return folder


def open_attempt(folder: Path, stage: str, inputs: dict[str, Result]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    digests = {name: result.digest for name, result in inputs.items()}
    Provenance(
        stage=stage,
        attempt="a-1",
        config={},
        config_digest=f"config of {stage}",
        code_digest="code",
        code_version="0123456",
        inputs=digests,
    ).write(folder)
    return folder


@dataclass(frozen=True)
class Episode:
    """A sample as the rl stage keeps it: what the policy said, and between its turns what the environment answered."""

    group: int
    prompt: str
    reward: float
    said: Sequence[str]
    terms: Sequence[float] | None = None
    finished: bool = True
    graded: bool = True


def write_episodes(path: Path, step: int, episodes: Sequence[Episode], terms: str = "verifier") -> None:
    """A trajectory file; of `said` every second text is the environment's."""
    tokenizer = character_tokenizer(MODEL.architecture.alphabet)
    tokens: list[list[int]] = []
    masks: list[list[bool]] = []
    for episode in episodes:
        prompt = encode_prompt(tokenizer, episode.prompt)
        turns = [encode_completion(tokenizer, text) for text in episode.said]
        tokens.append(sum(turns, prompt))
        masks.append(sum(([n % 2 == 0] * len(turn) for n, turn in enumerate(turns)), [False] * len(prompt)))
    mask, count = np.concatenate(masks), len(episodes)
    played = Trajectories(
        tokens=np.concatenate(tokens).astype(np.int32),
        mask=mask.astype(np.bool_),
        logprobs=-mask.astype(np.float32),
        versions=np.where(mask, step - 1, -1).astype(np.int32),
        offsets=np.cumsum([0, *map(len, tokens)]).astype(np.int64),
        prompt_lengths=np.array([len(encode_prompt(tokenizer, e.prompt)) for e in episodes], np.int32),
        rewards=np.array([e.reward for e in episodes], np.float32),
        terms=np.array([e.terms or (e.reward,) for e in episodes], np.float32),
        finished=np.array([e.finished for e in episodes], np.bool_),
        limits=np.full(count, 64, np.int32),
        graded=np.array([e.graded for e in episodes], np.bool_),
        groups=np.array([e.group for e in episodes], np.int32),
        seeds=np.arange(count, dtype=np.int64),
        prompt_ids=tuple(f"row-{e.group}" for e in episodes),
    )
    write_trajectories(path, played, {"step": step, "terms": terms})


@pytest.fixture(scope="session")
def episode() -> type[Episode]:
    return Episode


@pytest.fixture
def played(inputs: dict[str, Result], tmp_path: Path) -> Callable[..., Result]:
    """`played({file: (step, episodes)}, terms)` is an rl result with these trajectory files."""

    def made(files: dict[str, tuple[int, Sequence[Episode]]], terms: str = "verifier") -> Result:
        folder = open_attempt(tmp_path / "rl", "rl", {name: inputs[name] for name in ("synth", "sft")})
        (folder / "trajectories").mkdir(exist_ok=True)
        for name, (step, episodes) in files.items():
            write_episodes(folder / "trajectories" / name, step, episodes, terms)
        commit_manifest(folder, list((folder / "trajectories").iterdir()), {})
        return Result(folder / NAME)

    return made


def _synth(folder: Path) -> Result:
    open_attempt(folder, "synth", {})
    environment = make(ENVIRONMENT)
    for split, first, count in (("evaluation", 0, 60), ("harder", 1000, 12)):
        tasks = [environment.reset(seed=first + n, harder=split == "harder")[1] for n in range(count)]
        rows = {
            row_id(environment.canonical(task["prompt"])): task | {"seed": 0, "source": "arithmetic"} for task in tasks
        }
        (folder / split).mkdir()
        table = pa.Table.from_pylist([{"id": key, **row} for key, row in rows.items()], schema=SCHEMA)
        write_shard(folder / split / "00000.parquet", table, {})
    paths = list(folder.glob("*/*.parquet"))
    commit_manifest(folder, paths, {"seconds": 1.5}, environment_hash=environment_hash(ENVIRONMENT))
    return Result(folder / NAME)


def _trained(folder: Path, inputs: dict[str, Result], says: str, metrics: dict[str, float]) -> Result:
    stage = "rl" if "sft" in inputs else "sft"
    open_attempt(folder, stage, inputs)
    tokenizer = character_tokenizer(MODEL.architecture.alphabet)
    policy = load_policy(MODEL, seed=1)
    _teach(policy, tokenizer, says)
    policy.model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    log = Metrics(folder, True)
    for step in (1, 2, 3):
        log.log(step, **metrics)
    log.commit(3)
    log.close()
    paths = [path for part in ("model", "metrics") for path in (folder / part).iterdir()]
    if stage == "rl":
        (folder / "trajectories").mkdir()
        paths += [folder / "trajectories" / f"step-{step:06d}-rank-0000.h5" for step in (1, 2, 3)]
        for step, path in enumerate(paths[-3:], 1):
            write_episodes(path, step, [Episode(0, "1+2:", reward, (f">{n}",)) for n, reward in enumerate((0.0, 1.0))])
        write_warnings(folder, [Warned(2, "entropy collapse", "entropy is 0.01", "Try another algorithm.")])
    commit_manifest(
        folder,
        paths,
        {"seconds": 2.5, "tokens": 1000},
        environment_hash=environment_hash(ENVIRONMENT) if stage == "rl" else "",
        tokenizer_digest=tokenizer_digest(tokenizer),
        weights_digest=f"weights of {stage}",
    )
    return Result(folder / NAME)


def _teach(policy: Policy, tokenizer, says: str) -> None:
    prompts = [make(ENVIRONMENT).reset(seed=seed, harder=seed % 2 == 1)[0] for seed in range(2000, 2256)]
    packed = pack([(encode_prompt(tokenizer, p), encode_completion(tokenizer, says)) for p in prompts])
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    for _ in range(60):
        loss = -policy(packed).logprobs.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
