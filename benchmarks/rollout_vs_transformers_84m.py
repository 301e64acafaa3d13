"""`rollout_vs_transformers` at 84M parameters, where matrix products decide; 128 requests, on two threads."""

from transformers import Qwen3Config

from benchmarks.rollout_vs_transformers import compare

LARGE = Qwen3Config(
    vocab_size=16384,
    hidden_size=640,
    num_hidden_layers=15,
    num_attention_heads=10,
    num_key_value_heads=5,
    head_dim=64,
    intermediate_size=1920,
    max_position_embeddings=256,
    tie_word_embeddings=True,
)
"""84M parameters."""


def measure() -> dict[str, str | float]:
    """On all cores of a laptop."""
    return compare("rollout_vs_transformers_84m", LARGE, requests=128, threads=2)
