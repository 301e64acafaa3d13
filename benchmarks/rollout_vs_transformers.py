"""Useful tokens a second of the rollout engine on completions of ragged lengths, against `transformers.generate`.

512 requests with prompts of 12 tokens; lengths are exponential with mean 24, at most 96, and forced, so both sides do
the same work. transformers pads each batch to its longest completion; it is given the better of two batch sizes.
"""

import copy
import random
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Request, generate
from stages.rollout.torch.engine import TorchEngine
from stages.trainer import attention

NUM_REQUESTS, PROMPT_TOKENS, MEAN_TOKENS, MOST_TOKENS = 512, 12, 24, 96
SLOTS, BATCH_SIZES, ROUNDS = 64, (64, 256), 3
NO_TOKEN = -1
"""As the end token: nothing ends before its length."""


def measure() -> dict[str, str | float]:
    """The median of `ROUNDS` alternating runs of both sides, in useful tokens a second.

    On one thread, since two threads on a core that others use wait for each other and say nothing of either side.
    """
    torch.set_num_threads(1)
    source = random.Random(0)
    lengths = [min(MOST_TOKENS, max(2, int(source.expovariate(1 / MEAN_TOKENS)))) for _ in range(NUM_REQUESTS)]
    prompts = [[source.randrange(5, 60) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_REQUESTS)]
    theirs, ours = _models()
    engine = TorchEngine(ours, NO_TOKEN)
    requests = [
        Request(prompt, seed, length) for seed, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    sampling = SamplingConfig(max_new_tokens=MOST_TOKENS, slots=SLOTS)
    sides: dict[int, Callable[[], object]] = {0: lambda: generate(engine, requests, sampling)}
    for size in BATCH_SIZES:
        sides[size] = lambda size=size: _generate(theirs, prompts, lengths, size)
    seconds: dict[int, list[float]] = {side: [] for side in sides}
    generate(engine, requests[:SLOTS], sampling)
    _generate(theirs, prompts[:SLOTS], lengths[:SLOTS], SLOTS)
    for _ in range(ROUNDS):
        for side, play in sides.items():
            start = time.perf_counter()
            play()
            seconds[side].append(time.perf_counter() - start)
    rates = {side: sum(lengths) / sorted(times)[ROUNDS // 2] for side, times in seconds.items()}
    best = max(BATCH_SIZES, key=lambda size: rates[size])
    return {
        "name": "rollout_vs_transformers",
        "value": rates[0],
        "unit": "useful tokens/s",
        "baseline": rates[best],
        "ratio": rates[0] / rates[best],
    }


def _models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """The same 3.7M random weights, attending in transformers' way and in the engine's."""
    torch.manual_seed(0)
    config = Qwen3Config(
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
    theirs = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    ours = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=attention.NAME).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@torch.inference_mode()
def _generate(model: PreTrainedModel, prompts: list[list[int]], lengths: list[int], batch_size: int) -> None:
    for start in range(0, len(prompts), batch_size):
        batch = torch.tensor(prompts[start : start + batch_size])
        longest = max(lengths[start : start + batch_size])
        model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=True,
            min_new_tokens=longest,
            max_new_tokens=longest,
            pad_token_id=0,
        )


if __name__ == "__main__":
    print(measure())
