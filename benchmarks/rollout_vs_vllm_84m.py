"""`rollout_vs_vllm` at 84M parameters, where matrix products decide, on two threads."""

from benchmarks.rollout_vs_transformers_84m import LARGE
from benchmarks.rollout_vs_vllm import compare


def measure() -> dict[str, str | float]:
    """On all cores of a laptop."""
    return compare("rollout_vs_vllm_84m", LARGE, threads=2)


if __name__ == "__main__":
    print(measure())
