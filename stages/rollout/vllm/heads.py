"""Which sizes of attention heads vLLM has on a CPU. Knows no torch, so that it can be asked before the run."""

CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Of vLLM's CPU build (0.32.0)."""


def check_cpu_heads(size: int) -> None:
    """Raise ValueError when vLLM on a CPU has no attention for heads of `size`."""
    if size not in CPU_HEADS:
        raise ValueError(
            f"engine.name: vLLM on a CPU has no attention for heads of size {size} (hidden size by number of heads), "
            f"only for {', '.join(map(str, CPU_HEADS))}; take engine.name=torch, or another model "
            "(model.architecture.num_heads)"
        )
