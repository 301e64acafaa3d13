"""`rollout_vs_transformers` at 84M parameters, where matrix products decide, on two threads.

All 512 requests, once, which takes three minutes; batches of 128 and 256, of which transformers has the better (of 64
it takes longer than of either).
"""

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
    return compare("rollout_vs_transformers_84m", LARGE, threads=2, sizes=(128, 256), rounds=1)
