"""Every operator against numbers worked out by hand, and the invariance of the losses."""

import math
from pathlib import Path

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
from stages.algorithms.kinds import Batch, PolicyOutputs
from stages.algorithms.load import load_algorithm
from stages.algorithms.losses import (
    clipped_surrogate,
    constant_mean,
    policy_gradient,
    sample_mean,
    squared_error,
    token_mean,
)
from stages.algorithms.operators import add, explained_variance, importance_ratio, kl_k3, over_tokens, whiten


def batch(lengths: list[int], groups: list[int] | None = None, outputs: PolicyOutputs | None = None) -> Batch:
    """A batch that is alone: its counts are the global ones."""
    groups = [0] * len(lengths) if groups is None else groups

    def forward(_: frozenset[str]) -> PolicyOutputs:
        assert outputs is not None
        return outputs

    return Batch(
        lengths=torch.tensor(lengths, dtype=torch.int64),
        groups=torch.tensor(groups, dtype=torch.int64),
        num_groups=max(groups, default=-1) + 1,
        total_tokens=sum(lengths),
        total_samples=len(lengths),
        reduce=lambda tensor: tensor,
        forward=forward,
    )


def close(found: Tensor, wanted: list[float] | float) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted), atol=1e-6, rtol=1e-5)


def test_a_batch_knows_the_sample_and_the_place_of_each_token() -> None:
    three = batch([2, 0, 3])
    assert three.sample_of_token.tolist() == [0, 0, 2, 2, 2]
    assert three.place_in_sample.tolist() == [0, 1, 0, 1, 2]
    close(three.sum_tokens(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])), [3.0, 0.0, 12.0])


def test_group_mean_and_deviation() -> None:
    two = batch([1] * 5, [0, 0, 0, 1, 1])
    reward = torch.tensor([1.0, 0.0, 2.0, 3.0, 3.0])
    mean, deviation = group_mean(two, reward), group_deviation(two, reward)
    close(mean, [1.0, 3.0])
    close(deviation, [1.0, 0.0])
    centred = subtract_group(two, reward, mean)
    close(centred, [0.0, -1.0, 1.0, 0.0, 0.0])
    close(divide_by_group(two, centred, deviation, epsilon=0.0)[:3], [0.0, -1.0, 1.0])
    close(divide_by_group(two, centred, deviation, epsilon=1e-4)[3:], [0.0, 0.0])


def test_leave_one_out_compares_with_the_others() -> None:
    three = batch([1] * 5, [0, 0, 0, 1, 2])
    found = leave_one_out(three, torch.tensor([3.0, 0.0, 0.0, 7.0, 0.0]))
    close(found, [3.0, -1.5, -1.5, 0.0, 0.0])


def test_gae_by_hand() -> None:
    """Sample 1: V = .5 .6, r = 1; sample 2: V = .2, r = 0; discount .9, decay .8."""
    two = batch([2, 1])
    values = torch.tensor([0.5, 0.6, 0.2])
    found = gae(two, torch.tensor([1.0, 0.0]), values, discount=0.9, trace_decay=0.8)
    last = 1.0 - 0.6
    first = (0.9 * 0.6 - 0.5) + 0.9 * 0.8 * last
    close(found.advantages, [first, last, -0.2])
    close(found.returns, [first + 0.5, 1.0, 0.0])


def test_gae_without_discount_is_the_reward_minus_the_value() -> None:
    two = batch([3, 2])
    values = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
    found = gae(two, torch.tensor([1.0, -1.0]), values, discount=1.0, trace_decay=1.0)
    close(found.advantages, [0.9, 0.8, 0.7, -1.4, -1.5])
    close(found.returns, [1.0, 1.0, 1.0, -1.0, -1.0])


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


def test_the_three_means() -> None:
    two = batch([3, 1])
    of = torch.tensor([1.0, 2.0, 3.0, 10.0])
    close(token_mean(two, of), 4.0)
    close(sample_mean(two, of), 6.0)
    close(constant_mean(two, of, tokens=4), 2.0)


def test_the_small_ones() -> None:
    close(add(torch.tensor(1.0), torch.tensor(4.0), weight=0.5), 3.0)
    close(squared_error(torch.tensor([1.0]), torch.tensor([3.0])), [4.0])
    close(policy_gradient(torch.tensor([-2.0]), torch.tensor([0.5])), [1.0])
    close(over_tokens(batch([2, 1]), torch.tensor([5.0, 6.0])), [5.0, 5.0, 6.0])


def test_whitening_has_mean_zero_and_deviation_one() -> None:
    close(whiten(batch([4]), torch.tensor([1.0, 3.0, 1.0, 3.0]), epsilon=0.0), [-1.0, 1.0, -1.0, 1.0])


def test_explained_variance() -> None:
    returns = torch.tensor([0.0, 1.0, 2.0])
    close(explained_variance(batch([3]), returns, returns), 1.0)
    close(explained_variance(batch([3]), torch.full((3,), 5.0), returns), 0.0)


def test_nothing_at_all_is_no_error() -> None:
    none = batch([])
    empty = torch.zeros(0)
    assert group_mean(none, empty).shape == (0,)
    assert leave_one_out(none, empty).shape == (0,)
    assert gae(none, empty, empty, discount=1.0, trace_decay=1.0).advantages.shape == (0,)
    assert whiten(none, empty).shape == (0,)
    for mean in (token_mean, sample_mean):
        close(mean(none, empty), 0.0)
    close(constant_mean(none, empty, tokens=16), 0.0)


def hand_worked(name: str) -> tuple[float, list[float]]:
    """Loss and its gradient by the log-probabilities, of two prompts with two samples each, of 2, 1, 1 and 1 tokens."""
    algorithm = load_algorithm(name)
    old = torch.tensor([-1.0, -1.0, -2.0, -1.0, -1.0])
    logprobs = (old + torch.tensor([0.0, 0.1, 0.0, 0.4, 0.0])).requires_grad_()
    whole = batch([2, 1, 1, 1], [0, 0, 1, 1], PolicyOutputs(logprobs, torch.ones(5), torch.zeros(5)))
    given = {
        "reward": torch.tensor([1.0, 0.0, 1.0, 0.0]),
        "rollout_logprobs": old,
        "length": torch.tensor([2.0, 1.0, 1.0, 1.0]),
        "finished": torch.ones(4),
    }
    with torch.no_grad():
        known = algorithm.run_experience(whole, given)
    loss = algorithm.run_update(whole, {name: known[name] for name in algorithm.carried})["loss"]
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad.tolist()


def test_dr_grpo_by_hand() -> None:
    """Advantages .5 and -.5; the fourth token's ratio exp(.4) = 1.49 is above 1.28, so it is clipped."""
    loss, gradient = hand_worked("dr_grpo")
    grown = math.exp(0.1)
    assert loss == pytest.approx(-(0.5 + 0.5 * grown - 0.5 + 0.5 * 1.28 - 0.5) / (4 * 16), rel=1e-5)
    assert gradient == pytest.approx([x / 64 for x in (-0.5, -0.5 * grown, 0.5, 0.0, 0.5)], rel=1e-5)


def test_grpo_by_hand() -> None:
    """The deviation is sqrt(.5), so advantages are .7071 (less the epsilon); sample 1 has two tokens."""
    loss, gradient = hand_worked("grpo")
    scale = 0.5 / (math.sqrt(0.5) + 1e-4)
    grown = math.exp(0.1)
    assert loss == pytest.approx(-scale * ((1 + grown) / 2 - 1 + 1.2 - 1) / 4, rel=1e-4)
    assert gradient == pytest.approx([scale * x / 4 for x in (-0.5, -0.5 * grown, 1.0, 0.0, 1.0)], rel=1e-5)


def test_rloo_by_hand() -> None:
    """Advantages 1 and -1, times the log-probability of the whole completion."""
    loss, gradient = hand_worked("rloo")
    assert loss == pytest.approx(-((-1.0 - 0.9) - (-2.0) + (-0.6) - (-1.0)) / 4, rel=1e-5)
    assert gradient == pytest.approx([-0.25, -0.25, 0.25, -0.25, 0.25], rel=1e-5)


def test_ppo_by_hand() -> None:
    """Values 0, so advantages are the rewards 1 1 0 1 0: mean .6, deviation sqrt(.24); the value loss is .5 x .6."""
    loss, gradient = hand_worked("ppo")
    high, low = 0.4 / (math.sqrt(0.24) + 1e-6), -0.6 / (math.sqrt(0.24) + 1e-6)
    grown = math.exp(0.1)
    assert loss == pytest.approx(-(high + high * grown + low + 1.28 * high + low) / 5 + 0.5 * 0.6, rel=1e-5)
    assert gradient == pytest.approx([x / 5 for x in (-high, -high * grown, -low, 0.0, -low)], rel=1e-5)


@pytest.mark.parametrize("name", ["dr_grpo", "grpo", "ppo", "rloo"])
def test_a_loss_is_the_sum_of_its_parts_however_it_is_split(name: str) -> None:
    """Micro-batches and ranks carry the global counts, so losses and gradients of any split add up to the whole."""
    algorithm = load_algorithm(name)
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([3, 1, 4, 2, 5])
    tokens = int(lengths.sum())
    old, change, values, returns = (torch.randn(tokens, generator=generator, dtype=torch.float64) for _ in range(4))
    advantage = torch.randn(tokens, generator=generator, dtype=torch.float64)
    carried = {"advantage": advantage, "rollout_logprobs": old, "estimate.returns": returns}

    def gradient(split: list[list[int]]) -> tuple[float, Tensor]:
        logprobs = (old + 0.3 * change).requires_grad_()
        total = 0.0
        for samples in split:
            ends = lengths.cumsum(0)
            index = torch.cat(
                [torch.zeros(0, dtype=torch.int64)] + [torch.arange(ends[s] - lengths[s], ends[s]) for s in samples]
            )
            outputs = PolicyOutputs(logprobs[index], torch.zeros(len(index)), values[index])
            part = Batch(
                lengths[torch.tensor(samples, dtype=torch.int64)],
                torch.zeros(len(samples), dtype=torch.int64),
                1,
                tokens,
                len(lengths),
                lambda tensor: tensor,
                lambda _, outputs=outputs: outputs,
            )
            loss = algorithm.run_update(part, {name: carried[name][index] for name in algorithm.carried})["loss"]
            loss.backward()
            total += loss.item()
        assert logprobs.grad is not None
        return total, logprobs.grad

    whole, whole_gradient = gradient([[0, 1, 2, 3, 4]])
    for split in ([[0], [1], [2], [3], [4]], [[3, 1], [], [4, 0, 2]]):
        parts, parts_gradient = gradient(split)
        assert parts == pytest.approx(whole, rel=1e-12)
        torch.testing.assert_close(parts_gradient, whole_gradient, rtol=1e-12, atol=0)


def test_whitening_takes_the_moments_of_all_ranks() -> None:
    """Two ranks that reduce together whiten as one does alone."""
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([6.0])]
    alone = whiten(batch([3]), torch.cat(parts))
    mean, variance = 3.0, sum((x - 3.0) ** 2 for x in (1.0, 2.0, 6.0))
    for part, wanted in zip(parts, (alone[:2], alone[2:]), strict=True):
        sums = iter([torch.tensor(3 * mean), torch.tensor(variance)])
        rank = Batch(
            torch.tensor([len(part)]), torch.tensor([0]), 1, 3, 2, lambda _, sums=sums: next(sums), lambda _: None
        )
        torch.testing.assert_close(whiten(rank, part), wanted)


def test_a_new_algorithm_needs_no_code(tmp_path: Path) -> None:
    """PPO's clip with a KL penalty and an entropy bonus, from a file of one's own."""
    text = """
experience:
  baseline: {operator: leave_one_out, takes: {of: reward}}
  advantage: {operator: over_tokens, takes: {of: baseline}}
update:
  policy: {operator: policy_forward}
  ratio: {operator: importance_ratio, takes: {new: policy.logprobs, old: rollout_logprobs}}
  surrogate: {operator: clipped_surrogate, takes: {ratio: ratio, advantage: advantage}}
  main: {operator: token_mean, takes: {of: surrogate.loss}}
  kl: {operator: kl_k3, takes: {new: policy.logprobs, old: rollout_logprobs}}
  kl_mean: {operator: token_mean, takes: {of: kl}}
  entropy: {operator: token_mean, takes: {of: policy.entropy}}
  penalised: {operator: add, takes: {base: main, other: kl_mean}, values: {weight: 0.1}}
  loss: {operator: add, takes: {base: penalised, other: entropy}, values: {weight: -0.01}}
"""
    (tmp_path / "mine.yaml").write_text(text)
    loss, _ = hand_worked(str(tmp_path / "mine.yaml"))
    surrogate = -(1 + math.exp(0.1) - 1 + 1.2 - 1) / 5
    penalty = (math.exp(0.1) - 1.1 + math.exp(0.4) - 1.4) / 5
    assert loss == pytest.approx(surrogate + 0.1 * penalty - 0.01, rel=1e-5)
