"""Useful tokens a second of the rollout engine on completions of ragged lengths, against `transformers.generate`.

512 requests with prompts of 12 tokens; lengths are exponential with mean 24, at most 96, and forced, so both sides do
the same work. The engine has 64 slots. transformers pads each batch to its longest completion; it is given the best of
three batch sizes. On one thread: two threads on a core that others use wait for each other and say nothing of either.
"""

import copy
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Request, generate
from stages.rollout.torch.engine import TorchEngine
from stages.trainer import attention

REQUESTS, PROMPT_TOKENS, MEAN_TOKENS, MOST_TOKENS = 512, 12, 24, 96
SLOTS, BATCH_SIZES, ROUNDS = 64, (64, 128, 256), 3
NO_TOKEN = -1
"""As the end token: nothing ends before its length."""
SMALL = Qwen3Config(
    vocab_size=64,
    hidden_size=256,
    num_hidden_layers=5,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=32,
    intermediate_size=704,
    max_position_embeddings=256,
    tie_word_embeddings=True,
)
"""3.7M parameters."""


class Work(NamedTuple):
    """What is asked of both sides."""

    prompts: list[list[int]]
    lengths: list[int]

    @staticmethod
    def of(count: int = REQUESTS) -> "Work":
        """Requests of ragged lengths."""
        source = random.Random(0)
        lengths = [min(MOST_TOKENS, max(2, int(source.expovariate(1 / MEAN_TOKENS)))) for _ in range(count)]
        return Work([[source.randrange(5, 60) for _ in range(PROMPT_TOKENS)] for _ in lengths], lengths)

    def requests(self) -> list[Request]:
        """For an engine."""
        return [Request(prompt, seed, length) for seed, (prompt, length) in enumerate(zip(*self, strict=True))]


def measure() -> dict[str, str | float]:
    """At 3.7M parameters."""
    return compare("rollout_vs_transformers", SMALL, threads=1)


def compare(
    name: str, config: Qwen3Config, *, threads: int, sizes: tuple[int, ...] = BATCH_SIZES, rounds: int = ROUNDS
) -> dict[str, str | float]:
    """The median of the alternating runs of both sides, in useful tokens a second, and transformers at its best."""
    torch.set_num_threads(threads)
    work = Work.of()
    theirs, ours = models(config)
    engine = TorchEngine(ours, NO_TOKEN)
    sampling = SamplingConfig(max_new_tokens=MOST_TOKENS, slots=SLOTS)
    sides: dict[int, Callable[[], object]] = {0: lambda: generate(engine, work.requests(), sampling)}
    for size in sizes:
        sides[size] = lambda size=size: _generate(theirs, work, size)
    seconds: dict[int, list[float]] = {side: [] for side in sides}
    warm_up = Work(work.prompts[:SLOTS], [8] * SLOTS)
    generate(engine, warm_up.requests(), sampling)
    _generate(theirs, warm_up, SLOTS)
    for _ in range(rounds):
        for side, play in sides.items():
            start = time.perf_counter()
            play()
            seconds[side].append(time.perf_counter() - start)
    rates = {side: sum(work.lengths) / sorted(times)[rounds // 2] for side, times in seconds.items()}
    value = rates.pop(0)
    print("transformers, useful tokens/s by batch size: " + ", ".join(f"{n}: {r:,.0f}" for n, r in rates.items()))
    baseline = max(rates.values())
    return {"name": name, "value": value, "unit": "useful tokens/s", "baseline": baseline, "ratio": value / baseline}


def models(config: Qwen3Config) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The same random weights, attending in transformers' way and in the engine's."""
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="sdpa").eval()
    ours = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=attention.NAME).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@torch.inference_mode()
def _generate(model: PreTrainedModel, work: Work, batch_size: int) -> None:
    for start in range(0, len(work.prompts), batch_size):
        batch = torch.tensor(work.prompts[start : start + batch_size])
        longest = max(work.lengths[start : start + batch_size])
        model.generate(  # pyright: ignore[reportCallIssue]
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=True,
            min_new_tokens=longest,
            max_new_tokens=longest,
            pad_token_id=0,
        )
