"""`rollout_vs_vllm` at 84M parameters, where matrix products decide; 128 requests, on two threads."""

from benchmarks.rollout_vs_transformers_84m import LARGE
from benchmarks.rollout_vs_vllm import compare


def measure() -> dict[str, str | float]:
    """On all cores of a laptop."""
    return compare("rollout_vs_vllm_84m", LARGE, requests=128, threads=2)


if __name__ == "__main__":
    print(measure())
