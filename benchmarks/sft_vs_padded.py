"""Real tokens a second of packed fine-tuning on ragged lengths, against padded batches in plain transformers.

Batches of 32 sequences with prompts of 12 tokens; completions are exponential with mean 24, at most 96. Both sides take
whole optimizer steps (forward, backward, clipping, fused AdamW) on the same sequences with the same loss. The baseline
pads to the longest of the batch and attends with scaled_dot_product_attention, transformers' default.
"""

import copy
import time

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from data.job import Job
from data.packing import Packed, pack
from stages.trainer.config import ArchitectureConfig, ModelConfig, OptimizerConfig
from stages.trainer.learner import Learner
from stages.trainer.policy import load_policy

NUM_BATCHES, SEQUENCES, PROMPT_TOKENS, MEAN_TOKENS, MOST_TOKENS, ROUNDS = 6, 32, 12, 24, 96, 3
MODEL = ModelConfig(
    architecture=ArchitectureConfig(
        hidden_size=256, num_layers=5, num_heads=8, num_key_value_heads=4, intermediate_size=704
    )
)

Batch = list[tuple[list[int], list[int]]]


def measure() -> dict[str, str | float]:
    """The median of `ROUNDS` alternating passes over the batches, in real tokens a second, on one thread."""
    torch.set_num_threads(1)
    batches = _batches()
    learner = Learner(load_policy(MODEL, 0), OptimizerConfig(warmup_steps=0), 1e-4, 1000, Job())
    theirs = AutoModelForCausalLM.from_config(copy.deepcopy(learner.policy.model.config), attn_implementation="sdpa")
    theirs.load_state_dict(learner.policy.model.state_dict())
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    packed, padded = [pack(batch) for batch in batches], [_pad(batch) for batch in batches]

    losses = _packed_step(learner, packed[0]), _padded_step(theirs, optimizer, *padded[0])
    assert abs(losses[0] - losses[1]) < 1e-4, f"the two sides do not compute the same loss: {losses}"
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for batch in packed:
            _packed_step(learner, batch)
        middle = time.perf_counter()
        for tokens, mask, labels in padded:
            _padded_step(theirs, optimizer, tokens, mask, labels)
        seconds[0].append(middle - start)
        seconds[1].append(time.perf_counter() - middle)

    real = sum(len(batch.tokens) for batch in packed)
    value, baseline = (real / sorted(times)[ROUNDS // 2] for times in seconds)
    return {
        "name": "sft_vs_padded",
        "value": value,
        "unit": "real tokens/s",
        "baseline": baseline,
        "ratio": value / baseline,
    }


def _batches() -> list[Batch]:
    numbers = np.random.default_rng(0)
    lengths = np.clip(numbers.exponential(MEAN_TOKENS, (NUM_BATCHES, SEQUENCES)).astype(int), 2, MOST_TOKENS)
    draw = numbers.integers
    return [[(draw(3, 55, PROMPT_TOKENS).tolist(), draw(3, 55, length).tolist()) for length in row] for row in lengths]


def _pad(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, attention mask and labels [sequences, longest]."""
    width = max(len(prompt) + len(completion) for prompt, completion in batch)
    tokens = torch.zeros(len(batch), width, dtype=torch.long)
    mask, labels = torch.zeros_like(tokens), torch.full_like(tokens, -100)
    for row, (prompt, completion) in enumerate(batch):
        length = len(prompt) + len(completion)
        tokens[row, :length] = torch.tensor(prompt + completion)
        mask[row, :length] = 1
        labels[row, len(prompt) : length] = torch.tensor(completion)
    return tokens, mask, labels


def _packed_step(learner: Learner, batch: Packed) -> float:
    loss = -learner.policy(batch).logprobs.mean()
    learner.accumulate(loss)
    learner.step()
    return loss.item()


def _padded_step(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, tokens: Tensor, mask: Tensor, labels: Tensor
) -> float:
    loss = model(input_ids=tokens, attention_mask=mask, labels=labels).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    print(measure())
