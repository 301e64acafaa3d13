"""Every operator against numbers worked out by hand, and the invariance of the losses."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stages.algorithms.advantages import (
    divide_by_group,
    gae,
    group_deviation,
    group_mean,
    leave_one_out,
    subtract_group,
)
from stages.algorithms.kinds import Batch
from stages.algorithms.kl import kl_k3
from stages.algorithms.losses import (
    clipped_surrogate,
    constant_mean,
    policy_gradient,
    sample_mean,
    squared_error,
    token_mean,
)
from stages.algorithms.operators import add, explained_variance, importance_ratio, over_tokens, whiten

MakeBatch = Callable[..., Batch]


def close(found: Tensor, wanted: list[float] | float) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted), atol=1e-6, rtol=1e-5)


def test_a_batch_knows_the_sample_of_each_token_and_the_tokens_after_it(alone: MakeBatch) -> None:
    three, of = alone([2, 0, 3]), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert three.sample_of_token.tolist() == [0, 0, 2, 2, 2]
    assert replace(three, wanted=frozenset({"values"})).sample_of_token is three.sample_of_token, "computed once"
    assert three.following(of).tolist() == [2, 0, 4, 5, 0] and three.following(of, 2).tolist() == [0, 0, 5, 0, 0]
    close(three.sum_to_end(of, 0.5), [2.0, 2.0, 6.25, 6.5, 5.0])
    close(three.sum_tokens(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])), [3.0, 0.0, 12.0])


def test_group_mean_and_deviation(alone: MakeBatch) -> None:
    two = alone([1] * 5, [0, 0, 0, 1, 1])
    reward = torch.tensor([1.0, 0.0, 2.0, 3.0, 3.0])
    mean, deviation = group_mean(two, reward), group_deviation(two, reward)
    close(mean, [1.0, 3.0])
    close(deviation, [1.0, 0.0])
    centred = subtract_group(two, reward, mean)
    close(centred, [0.0, -1.0, 1.0, 0.0, 0.0])
    close(divide_by_group(two, centred, deviation, epsilon=0.0)[:3], [0.0, -1.0, 1.0])
    close(divide_by_group(two, centred, deviation, epsilon=1e-4)[3:], [0.0, 0.0])


def test_leave_one_out_compares_with_the_others(alone: MakeBatch) -> None:
    three = alone([1] * 5, [0, 0, 0, 1, 2])
    found = leave_one_out(three, torch.tensor([3.0, 0.0, 0.0, 7.0, 0.0]))
    close(found, [3.0, -1.5, -1.5, 0.0, 0.0])


def test_gae_by_hand(alone: MakeBatch) -> None:
    """Sample 1: V = .5 .6, r = 1; sample 2: V = .2, r = 0; discount .9, decay .8."""
    two = alone([2, 1])
    values = torch.tensor([0.5, 0.6, 0.2])
    found = gae(two, torch.tensor([1.0, 0.0]), values, discount=0.9, trace_decay=0.8)
    last = 1.0 - 0.6
    first = (0.9 * 0.6 - 0.5) + 0.9 * 0.8 * last
    close(found.advantages, [first, last, -0.2])
    close(found.returns, [first + 0.5, 1.0, 0.0])


def test_gae_without_discount_is_the_reward_minus_the_value(alone: MakeBatch) -> None:
    two = alone([3, 2])
    values = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
    found = gae(two, torch.tensor([1.0, -1.0]), values, discount=1.0, trace_decay=1.0)
    close(found.advantages, [0.9, 0.8, 0.7, -1.4, -1.5])
    close(found.returns, [1.0, 1.0, 1.0, -1.0, -1.0])


def gae_by_loop(lengths: list[int], reward: Tensor, values: Tensor, discount: float, decay: float) -> list[float]:
    """Equation 16 as it is written, token by token from the end, in double precision."""
    advantages, start = list[float](), 0
    for length, earned in zip(lengths, reward.tolist(), strict=True):
        own, after, value_after = list[float](), 0.0, 0.0
        for place in reversed(range(length)):
            value = values[start + place].item()
            delta = (earned if place == length - 1 else 0.0) + discount * value_after - value
            after, value_after = delta + discount * decay * after, value
            own.insert(0, after)
        advantages, start = advantages + own, start + length
    return advantages


@pytest.mark.parametrize(("discount", "decay"), [(1.0, 1.0), (1.0, 0.95), (0.99, 0.9), (0.9, 0.0)])
def test_gae_by_doubling_is_that_of_a_loop(alone: MakeBatch, discount: float, decay: float) -> None:
    lengths = [1, 0, 2, 3, 700, 64, 65, 1, 0]
    generator = torch.Generator().manual_seed(5)
    reward, values = torch.randn(9, generator=generator), torch.randn(sum(lengths), generator=generator)
    found = gae(alone(lengths), reward, values, discount=discount, trace_decay=decay)
    wanted = torch.tensor(gae_by_loop(lengths, reward, values, discount, decay))
    torch.testing.assert_close(found.advantages, wanted, atol=1e-6 if decay < 1 else 1e-5, rtol=1e-6)
    torch.testing.assert_close(found.returns, wanted + values)


def test_ratio_and_kl() -> None:
    new, old = torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.0])
    close(importance_ratio(new, old), [1.0, math.exp(-1)])
    close(kl_k3(new, old), [0.0, math.exp(-1) - 1 + 1])


def test_the_k3_estimate_is_unbiased() -> None:
    old, new = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.5, 0.3, 0.2]).log()
    close((old.exp() * kl_k3(new, old)).sum(), (old.exp() * (old - new)).sum().item())


def test_the_surrogate_is_clipped_only_where_it_would_gain() -> None:
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.25])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    found = clipped_surrogate(ratio, advantage, low=0.2, high=0.28)
    close(found.loss, [-1.28, 1.5, -0.5, 0.8, -1.25])
    assert found.clipped.tolist() == [1, 0, 0, 1, 0]


def test_the_three_means(alone: MakeBatch) -> None:
    two = alone([3, 1])
    of = torch.tensor([1.0, 2.0, 3.0, 10.0])
    close(token_mean(two, of), 4.0)
    close(sample_mean(two, of), 6.0)
    close(constant_mean(two, of, tokens=4), 2.0)


def test_the_small_ones(alone: MakeBatch) -> None:
    close(add(torch.tensor(1.0), torch.tensor(4.0), weight=0.5), 3.0)
    close(squared_error(torch.tensor([1.0]), torch.tensor([3.0])), [4.0])
    close(policy_gradient(torch.tensor([-2.0]), torch.tensor([0.5])), [1.0])
    close(over_tokens(alone([2, 1]), torch.tensor([5.0, 6.0])), [5.0, 5.0, 6.0])


def test_whitening_has_mean_zero_and_deviation_one(alone: MakeBatch) -> None:
    close(whiten(alone([4]), torch.tensor([1.0, 3.0, 1.0, 3.0]), epsilon=0.0), [-1.0, 1.0, -1.0, 1.0])


def test_explained_variance(alone: MakeBatch) -> None:
    returns = torch.tensor([0.0, 1.0, 2.0])
    close(explained_variance(alone([3]), returns, returns), 1.0)
    close(explained_variance(alone([3]), torch.full((3,), 5.0), returns), 0.0)


def test_nothing_at_all_is_no_error(alone: MakeBatch) -> None:
    none = alone([])
    empty = torch.zeros(0)
    assert group_mean(none, empty).shape == (0,)
    assert leave_one_out(none, empty).shape == (0,)
    assert gae(none, empty, empty, discount=1.0, trace_decay=1.0).advantages.shape == (0,)
    assert whiten(none, empty).shape == (0,)
    for mean in (token_mean, sample_mean):
        close(mean(none, empty), 0.0)
    close(constant_mean(none, empty, tokens=16), 0.0)


def test_whitening_takes_the_moments_of_all_ranks(alone: MakeBatch) -> None:
    """Two ranks that reduce together whiten as one does whole."""
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([6.0])]
    whole = whiten(alone([3]), torch.cat(parts))
    mean, variance = 3.0, sum((x - 3.0) ** 2 for x in (1.0, 2.0, 6.0))
    for part, wanted in zip(parts, (whole[:2], whole[2:]), strict=True):
        sums = iter([torch.tensor(3 * mean), torch.tensor(variance)])
        rank = Batch(
            torch.tensor([len(part)]), torch.tensor([0]), 1, 3, 2, lambda _, sums=sums: next(sums), lambda _: None
        )
        torch.testing.assert_close(whiten(rank, part), wanted)
