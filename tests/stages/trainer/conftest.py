"""A model of two layers and sequences of ragged lengths."""

from collections.abc import Iterator

import numpy as np
import pytest

from data.job import Job
from stages.trainer.config import ArchitectureConfig, ModelConfig
from stages.trainer.device import distributed

Sequences = list[tuple[list[int], list[int]]]


@pytest.fixture(scope="session")
def tiny() -> ModelConfig:
    return ModelConfig(
        architecture=ArchitectureConfig(
            hidden_size=32, num_layers=2, num_heads=4, num_key_value_heads=2, intermediate_size=48, max_positions=64
        )
    )


@pytest.fixture(scope="session")
def sequences() -> Sequences:
    numbers = np.random.default_rng(0)
    lengths = [(3, 9), (1, 1), (7, 30), (12, 4), (2, 29), (5, 12), (1, 40), (6, 2)]
    return [(numbers.integers(3, 55, p).tolist(), numbers.integers(3, 55, c).tolist()) for p, c in lengths]


@pytest.fixture
def one_rank() -> Iterator[Job]:
    """The process as the only rank of a job."""
    job = Job()
    with distributed(job):
        yield job
