from collections.abc import Iterable

import numpy as np
import pytest
import torch

from stages.rollout.draws import uniforms
from stages.rollout.torch.sampling import Sampler, invert

ORDINARY = torch.tensor([3, 4])


def draw_uniforms(seeds: Iterable[int], num_positions: int) -> torch.Tensor:
    return torch.from_numpy(np.stack([uniforms(seed, num_positions) for seed in seeds]))


def test_inversion_takes_the_token_at_which_the_cumulated_probability_passes() -> None:
    logprobs = torch.tensor([[0.5, 0.0, 0.25, 0.25]]).log()
    uniforms = [0.0, 0.49, 0.51, 0.74, 0.76, 1 - 2**-53]
    found = [invert(logprobs, torch.tensor([u], dtype=torch.float64)).item() for u in uniforms]
    assert found == [0, 0, 2, 2, 3, 3]


def test_inversion_over_a_large_vocabulary_is_that_of_one_sum_and_never_finds_an_impossible_token() -> None:
    torch.manual_seed(0)
    logprobs = (8 * torch.randn(64, 1000)).log_softmax(-1)
    logprobs[:, 900:] = -torch.inf
    logprobs[:32, 100:400] = -torch.inf
    logprobs = logprobs.log_softmax(-1)
    for uniform in (
        torch.rand(64, dtype=torch.float64),
        torch.zeros(64).double(),
        torch.full((64,), 1 - 2**-53).double(),
    ):
        found = invert(logprobs, uniform)
        cumulated = logprobs.double().exp().cumsum(-1)
        wanted = torch.searchsorted(cumulated, uniform[:, None] * cumulated[:, -1:] * (1 - 1e-12), right=True)[:, 0]
        assert (found == wanted).float().mean() > 0.95  # a float32 rounding may pass a boundary
        assert torch.isfinite(logprobs.gather(1, found[:, None])).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logit_that_is_no_number_gives_a_token_of_the_vocabulary_and_a_logprob_of_nan(
    bad: float, temperature: float
) -> None:
    logits = torch.zeros(2, 300)
    logits[0, 3 if bad > 0 else slice(None)] = bad
    tokens, logprobs = Sampler(temperature, 0.0, ORDINARY).choose(logits, draw_uniforms([1, 2], 1)[:, 0])
    assert (tokens < 300).all()
    assert logprobs.isnan().tolist() == [True, False]


def test_sampled_shares_are_the_probabilities() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0, 2.0]])
    draws = draw_uniforms(range(4000), 1)[:, 0]
    for temperature in (1.0, 0.5):
        tokens, logprobs = Sampler(temperature, 0.0, ORDINARY).choose(logits.expand(4000, -1), draws)
        wanted = (logits[0] / temperature).softmax(-1)
        shares = torch.bincount(tokens, minlength=4) / 4000
        assert torch.allclose(shares, wanted, atol=0.03)
        assert torch.allclose(logprobs, wanted[tokens].log(), atol=1e-6)
