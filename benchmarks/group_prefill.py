"""Seconds that 8 samples of one prompt of 512 tokens take, against 8 different prompts: a group is prefilled once.

Completions have 16 tokens each, which both sides decode alike: prefill is what differs.
"""

import copy
import random
import time
from collections.abc import Callable

import torch

from benchmarks.rollout_vs_transformers import NO_TOKEN, SMALL, models
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Request, generate
from stages.rollout.torch.engine import TorchEngine

PROMPT_TOKENS, SAMPLES, NEW_TOKENS, ROUNDS = 512, 8, 16, 5


def measure() -> dict[str, str | float]:
    """The median of `ROUNDS` alternating runs, at 3.7M parameters on one thread."""
    torch.set_num_threads(1)
    source = random.Random(0)
    config = copy.deepcopy(SMALL)
    config.max_position_embeddings = 2 * PROMPT_TOKENS
    engine = TorchEngine(models(config)[1], NO_TOKEN)
    prompts = [[source.randrange(5, 60) for _ in range(PROMPT_TOKENS)] for _ in range(SAMPLES)]
    group = [Request(prompts[0], seed) for seed in range(SAMPLES)]
    separate = [Request(prompt, seed) for seed, prompt in enumerate(prompts)]
    sampling = SamplingConfig(max_new_tokens=NEW_TOKENS, slots=SAMPLES)
    sides: dict[str, Callable[[], object]] = {
        "group": lambda: generate(engine, group, sampling),
        "separate": lambda: generate(engine, separate, sampling),
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(ROUNDS):
        for side, play in sides.items():
            start = time.perf_counter()
            play()
            seconds[side].append(time.perf_counter() - start)
    value, baseline = (sorted(seconds[side])[ROUNDS // 2] for side in ("group", "separate"))
    return {"name": "group_prefill", "value": value, "unit": "s", "baseline": baseline, "ratio": value / baseline}
