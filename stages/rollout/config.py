"""Which engine generates, and how completions are sampled."""

from typing import Literal

from pydantic import Field, PositiveInt

from data.section import Section


class SamplingConfig(Section):
    """Length, temperature, ends and batch shape of generation."""

    max_new_tokens: PositiveInt = 40
    """Of one completion; in an episode of several turns, of one turn."""
    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion, beside the end token; they stay in it, as sampled."""
    stop_tokens: tuple[int, ...] = ()
    """Token ids that end a completion, beside the end token."""
    slots: PositiveInt = 256
    """Sequences that one rank generates side by side; a free slot is refilled from the waiting requests."""


class EngineConfig(Section):
    """What generates, in the rl and evaluate stages."""

    name: Literal["torch", "vllm", "vllm_server"] = "torch"
    """torch: Qianka's own sampler, on the policy's own weights where it can. vllm: in the rank's process. vllm_server:
    one process for all ranks of a node."""
    memory_share: float = Field(default=0.4, gt=0, lt=1)
    """vllm: of a card's memory, what weights and keys and values take; the rest is the trainer's. torch: what keys and
    values take at most, of a card's memory that is free when a rollout begins, or of all that a machine without cards
    has, with fewer slots where it does not reach."""
    compile: bool = False
    """torch.compile the decode step of the torch engine: minutes at the first start, then read from the node's disk.
    On a CPU it gains less than a tenth."""
