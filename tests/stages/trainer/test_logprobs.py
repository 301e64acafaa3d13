import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from data.job import Job
from data.packing import pack
from stages.trainer import policy as policies
from stages.trainer.config import ModelConfig, OptimizerConfig
from stages.trainer.device import distributed
from stages.trainer.learner import Learner
from stages.trainer.logprobs import Distribution, token_distribution
from stages.trainer.policy import load_policy

Sequences = list[tuple[list[int], list[int]]]
VOCABULARY, WIDTH = 37, 8


def plain(head: nn.Linear, hidden: Tensor, drawn: Tensor, temperature: float) -> Distribution:
    said = torch.distributions.Categorical(logits=head(hidden) / temperature)
    return Distribution(said.log_prob(drawn), said.entropy())


def gradients(head: nn.Linear, hidden: Tensor, said: Distribution, entropy: bool) -> list[Tensor]:
    weights = torch.linspace(-1, 2, len(hidden), dtype=hidden.dtype)
    loss = (said.logprobs * weights).sum()
    if entropy:
        loss = loss + (said.entropy * weights.flip(0)).sum()
    return list(torch.autograd.grad(loss, [hidden, *head.parameters()]))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 20), st.integers(1, 21 * VOCABULARY), st.sampled_from([0.3, 1.0, 1.7]), st.booleans(), st.booleans()
)
def test_any_chunk_size_gives_the_plain_version_and_its_gradients(
    count: int, most: int, temperature: float, entropy: bool, bias: bool
) -> None:
    torch.manual_seed(count)
    head = nn.Linear(WIDTH, VOCABULARY, bias=bias)
    hidden = torch.randn(count, WIDTH, requires_grad=True)
    drawn = torch.randint(VOCABULARY, (count,))
    expected = plain(head, hidden, drawn, temperature)
    found = token_distribution(head, hidden, drawn, temperature=temperature, entropy=entropy, most=most)
    assert torch.allclose(found.logprobs, expected.logprobs, rtol=0, atol=1e-5)
    if entropy:
        assert torch.allclose(found.entropy, expected.entropy, rtol=0, atol=1e-5)
    else:
        assert found.entropy is None
    for one, other in zip(
        gradients(head, hidden, found, entropy), gradients(head, hidden, expected, entropy), strict=True
    ):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


def test_an_entropy_that_is_only_looked_at_adds_nothing_to_the_gradient() -> None:
    torch.manual_seed(0)
    head, hidden, drawn = nn.Linear(WIDTH, VOCABULARY), torch.randn(9, WIDTH, requires_grad=True), torch.arange(9)
    found = [token_distribution(head, hidden, drawn, temperature=1.0, entropy=e, most=80) for e in (True, False)]
    with_it, without = (gradients(head, hidden, said, False) for said in found)
    assert all(map(torch.equal, with_it, without))


def test_16_bit_chunks_add_up_in_float32() -> None:
    """512 chunks of which each adds a little: a sum in bfloat16 would stop growing at 256 times a part."""
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False).bfloat16()
    hidden = torch.ones(512, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    drawn = torch.zeros(512, dtype=torch.int64)
    found = [
        gradients(
            head, hidden, token_distribution(head, hidden, drawn, temperature=1.0, entropy=False, most=most), False
        )
        for most in (VOCABULARY, 512 * VOCABULARY)
    ]
    for one, other in zip(*found, strict=True):
        assert one.dtype is torch.bfloat16
        assert torch.allclose(one.float(), other.float(), rtol=0.02, atol=1e-3 * float(other.abs().max()))


def trained(
    job: Job, model: ModelConfig, sequences: Sequences, most: int
) -> tuple[list[float], dict[str, list[float]]]:
    policies.token_distribution = partial(token_distribution, most=most)
    with distributed(job):
        policy = load_policy(model, 1, value_head=True)
        learner = Learner(policy, OptimizerConfig(warmup_steps=0), 1e-2, 3, job)
        norms = []
        for _ in range(3):
            outputs = learner.policy(pack(sequences[job.rank :: job.world_size]), values=True, entropy=True)
            loss = (outputs.values - 1).square().sum() - outputs.logprobs.sum() - 0.1 * outputs.entropy.sum()
            learner.accumulate(loss / len(sequences))
            norms.append(learner.step())
        return norms, {name: weight.flatten().tolist() for name, weight in learner.full_weights()}


def test_chunks_of_a_sharded_policy_with_tied_embeddings_train_as_whole_ones(
    tiny: ModelConfig, sequences: Sequences, ranks: Any
) -> None:
    (norms, weights), *_ = ranks(trained, 1, tiny, sequences, 10**9)
    for found, moved in ranks(trained, 2, tiny, sequences, 300):
        assert found == pytest.approx(norms, rel=1e-4)
        for name, weight in weights.items():
            assert moved[name] == pytest.approx(weight, abs=1e-4), name


PEAK = """
import resource, sys, torch
from torch import nn
from stages.trainer.logprobs import token_distribution
most, tokens = int(sys.argv[1]), 2048
torch.set_num_threads(1)
head = nn.Linear(64, 151_936, bias=False)
hidden = torch.randn(tokens, 64, requires_grad=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
said = token_distribution(head, hidden, torch.arange(tokens), temperature=1.0, entropy=True, most=most)
(said.logprobs.sum() + said.entropy.sum()).backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_large_vocabulary_needs_the_memory_of_a_chunk() -> None:
    """2048 tokens of a vocabulary of 151,936 have 1.2 GB of logits, and the plain version holds several times that."""
    program = [sys.executable, "-c", PEAK, str(2**23)]
    grown = int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
    assert grown < 300_000, f"{grown} kB"
