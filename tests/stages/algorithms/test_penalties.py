"""KL, ratios, penalties and whitening, worked out by hand."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stages.algorithms.kinds import Batch
from stages.algorithms.kl import kl_k1, kl_k2, kl_k3
from stages.algorithms.operators import (
    multiply,
    over_samples,
    reference_forward,
    sequence_ratio,
    truncated_ratio,
    whiten_samples,
)
from stages.algorithms.penalties import length_penalty, overlong_penalty, reward_to_go, shape_reward

MakeBatch = Callable[..., Batch]


def close(found: Tensor | None, wanted: list[float]) -> None:
    assert found is not None
    torch.testing.assert_close(found, torch.tensor(wanted), atol=2e-6, rtol=1e-5)


def test_the_three_estimates_of_kl() -> None:
    """new - old = .5 and -1: k1 -.5 and 1; k2 .125 and .5; k3 e^.5 - 1 - .5 = .148721 and e^-1 - 1 + 1 = .367879."""
    new, old = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    close(kl_k1(new, old), [-0.5, 1.0])
    close(kl_k2(new, old), [0.125, 0.5])
    close(kl_k3(new, old), [0.148721, 0.367879])


def test_the_gradients_of_the_estimates_by_the_new_policy() -> None:
    """k1 -1, which teaches nothing; k2 new - old; k3 r - 1: e^.5 - 1 = .648721 and e^-1 - 1 = -.632121."""
    for estimate, wanted in ((kl_k1, [-1.0, -1.0]), (kl_k2, [0.5, -1.0]), (kl_k3, [0.648721, -0.632121])):
        new = torch.tensor([-1.0, -2.0], requires_grad=True)
        estimate(new, torch.tensor([-1.5, -1.0])).sum().backward()
        close(new.grad, wanted)


def test_k1_and_k3_are_unbiased_and_k2_is_nearly_so() -> None:
    """KL(.7 .2 .1 || .5 .3 .2) = .7 log 1.4 + .2 log .666667 + .1 log .5 = .235530 - .081093 - .069315 = .085122."""
    old, new = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.5, 0.3, 0.2]).log()
    means = [float((old.exp() * estimate(new, old)).sum()) for estimate in (kl_k1, kl_k3, kl_k2)]
    assert means[:2] == pytest.approx([0.085122, 0.085122], abs=1e-5)
    assert means[2] == pytest.approx(0.085122, rel=0.1)


def test_the_ratio_of_a_sample_is_the_geometric_mean_of_its_tokens(alone: MakeBatch) -> None:
    """Means of the differences .3, -.5 and nothing: e^.3 = 1.349859, e^-.5 = .606531, 1. Each token has its share."""
    new = torch.tensor([-0.8, -0.6, -1.5], requires_grad=True)
    found = sequence_ratio(alone([2, 1, 0]), new, torch.full((3,), -1.0))
    found.sum().backward()
    close(found.detach(), [1.349859, 0.606531, 1.0])
    close(new.grad, [0.674929, 0.674929, 0.606531])


def test_a_truncated_ratio_is_a_constant() -> None:
    new = torch.tensor([math.log(3.0), math.log(0.5)], requires_grad=True)
    found = truncated_ratio(new, torch.zeros(2), cap=2.0)
    close(found, [2.0, 0.5])
    assert not found.requires_grad


def test_the_overlong_penalty_falls_over_the_buffer() -> None:
    """Limit 40, buffer 10: 0 up to 30, then -.1 a token. Limit 20, buffer 5, 18 tokens: (20 - 5 - 18) / 5 = -.6."""
    length, limit = torch.tensor([12.0, 30.0, 35.0, 40.0, 18.0]), torch.tensor([40.0, 40.0, 40.0, 40.0, 20.0])
    close(overlong_penalty(length, limit, buffer_share=0.25), [0.0, 0.0, -0.5, -1.0, -0.6])


def test_no_room_for_a_token_is_no_division_by_zero() -> None:
    nothing = torch.zeros(1)
    close(overlong_penalty(nothing, nothing), [-1.0])
    close(length_penalty(nothing, nothing), [0.0])


def test_each_token_may_cost_the_same() -> None:
    penalty = length_penalty(torch.tensor([10.0, 40.0]), torch.tensor([40.0, 40.0]))
    close(penalty, [-0.25, -1.0])
    close(shape_reward(torch.tensor([1.0, 0.0]), penalty, weight=2.0), [0.5, -2.0])


def test_a_token_is_charged_for_itself_and_those_after_it(alone: MakeBatch) -> None:
    """Sums to go .6 .5 .3 and -.5, times .5, off the rewards 1 and 0."""
    kl = torch.tensor([0.1, 0.2, 0.3, -0.5])
    close(reward_to_go(alone([3, 1]), torch.tensor([1.0, 0.0]), kl, weight=0.5), [0.7, 0.75, 0.85, 0.25])


def test_what_a_token_is_charged_does_not_depend_on_what_lies_before_its_sample(alone: MakeBatch) -> None:
    """A million nats before it, where single precision knows only 1/16."""
    kl = torch.tensor([1e6, 0.1, 0.2])
    close(reward_to_go(alone([1, 2]), torch.zeros(2), kl, weight=1.0)[1:], [-0.3, -0.2])


def test_whitening_by_sample(alone: MakeBatch) -> None:
    """1, 3, 5: mean 3, deviation sqrt(8 / 3) = 1.632993."""
    close(whiten_samples(alone([4, 1, 9]), torch.tensor([1.0, 3.0, 5.0]), epsilon=0.0), [-1.224745, 0.0, 1.224745])


def test_the_small_ones(alone: MakeBatch) -> None:
    close(over_samples(alone([1] * 3, [0, 1, 1]), torch.tensor([5.0, 6.0])), [5.0, 6.0, 6.0])
    close(multiply(torch.tensor([2.0, 3.0]), torch.tensor([0.5, -1.0])), [1.0, -3.0])
    reference = torch.tensor([-1.0, -2.0])
    close(reference_forward(alone([2], reference=reference)), [-1.0, -2.0])


def test_nothing_at_all_is_no_error(alone: MakeBatch) -> None:
    none, empty = alone([]), torch.zeros(0)
    assert sequence_ratio(none, empty, empty).shape == (0,)
    assert reward_to_go(none, empty, empty, weight=1.0).shape == (0,)
    assert whiten_samples(none, empty).shape == (0,)
    assert over_samples(none, empty).shape == (0,)
    assert overlong_penalty(empty, empty).shape == (0,)
