"""Useful tokens a second of the torch engine against vLLM's CPU build, on the work of `rollout_vs_transformers`.

Both in this process, in turns, with the same random weights, 64 slots each; the best run of each counts.
That lengths are forced is told to vLLM's adapter by its private `_eos`: a real request ends at the end token.
"""

import time
from contextlib import closing

import torch
from transformers import Qwen3Config

from benchmarks.rollout_vs_transformers import MOST_TOKENS, NO_TOKEN, ROUNDS, SLOTS, SMALL, Work, models
from data.tokenizer import character_tokenizer
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Engine, generate
from stages.rollout.torch.engine import TorchEngine
from stages.rollout.vllm.engine import VllmEngine


def measure() -> dict[str, str | float]:
    """At 3.7M parameters, on one thread."""
    return compare("rollout_vs_vllm", SMALL, threads=1)


def compare(name: str, config: Qwen3Config, *, threads: int) -> dict[str, str | float]:
    """The best of `ROUNDS` alternating runs of both sides, in useful tokens a second."""
    torch.set_num_threads(threads)
    work = Work.of()
    _, model = models(config)
    sampling = SamplingConfig(max_new_tokens=MOST_TOKENS, slots=SLOTS)
    with closing(VllmEngine(config, character_tokenizer("0123456789"), slots=SLOTS)) as theirs:
        theirs._eos = NO_TOKEN
        theirs.update(model.named_parameters(), 1)
        sides: dict[str, Engine] = {"torch": TorchEngine(model, NO_TOKEN), "vllm": theirs}
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for engine in sides.values():
            generate(engine, work.requests()[:SLOTS], sampling)
        for _ in range(ROUNDS):
            for side, engine in sides.items():
                start = time.perf_counter()
                generate(engine, work.requests(), sampling)
                seconds[side].append(time.perf_counter() - start)
    ours, vllm = (sum(work.lengths) / min(seconds[side]) for side in ("torch", "vllm"))
    return {"name": name, "value": ours, "unit": "useful tokens/s", "baseline": vllm, "ratio": ours / vllm}


if __name__ == "__main__":
    print(measure())
