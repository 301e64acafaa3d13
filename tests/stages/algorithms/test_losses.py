"""Losses of a few tokens, worked out by hand: values, and gradients where something is clipped or held constant."""

import torch
from torch import Tensor

from stages.algorithms.losses import (
    clipped_log_ratio,
    clipped_squared_error,
    clipped_surrogate,
    clipped_weight,
    dual_clipped_surrogate,
)


def close(found: Tensor | None, wanted: list[float]) -> None:
    assert found is not None
    torch.testing.assert_close(found, torch.tensor(wanted), atol=2e-6, rtol=1e-5)


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, requires_grad=True)


def test_a_clipped_token_has_no_gradient_unless_it_moved_the_wrong_way() -> None:
    """r = 1.5 and .5, A = 1 and -1: min(1.5, 1.2), min(-1.5, -1.2), min(.5, .8), min(-.5, -.8)."""
    ratio = leaf(1.5, 1.5, 0.5, 0.5)
    found = clipped_surrogate(ratio, torch.tensor([1.0, -1.0, 1.0, -1.0]), low=0.2, high=0.2)
    found.loss.sum().backward()
    close(found.loss.detach(), [-1.2, 1.5, -0.5, 0.8])
    close(ratio.grad, [0.0, 1.0, -1.0, 0.0])
    close(found.clipped, [1.0, 0.0, 0.0, 1.0])


def test_dual_clip_bounds_a_bad_token_that_has_grown() -> None:
    """A = -1, r = 5: PPO's loss is 5, above 3, so 3. A = -1, r = 2: 2. A = -1, r = .5: .8. A = 1, r = 5: -1.2."""
    ratio = leaf(5.0, 2.0, 0.5, 5.0)
    found = dual_clipped_surrogate(ratio, torch.tensor([-1.0, -1.0, -1.0, 1.0]), low=0.2, high=0.2, most=3.0)
    found.loss.sum().backward()
    close(found.loss.detach(), [3.0, 2.0, 0.8, -1.2])
    close(ratio.grad, [0.0, 1.0, 0.0, 0.0])
    close(found.clipped, [1.0, 0.0, 1.0, 1.0])


def test_cispo_clips_the_weight_and_keeps_every_gradient() -> None:
    """r = 1.5, .1, 1.1 become 1.28, .1, 1.1: -1.28 x 2 x -1 = 2.56, -.1 x -1 x -2 = -.2, -1.1 x 1 x -.5 = .55."""
    logprobs = leaf(-1.0, -2.0, -0.5)
    ratio = torch.tensor([1.5, 0.1, 1.1]) * (logprobs - logprobs.detach()).exp()
    found = clipped_weight(logprobs, ratio, torch.tensor([2.0, -1.0, 1.0]), low=1.0, high=0.28)
    found.loss.sum().backward()
    close(found.loss.detach(), [2.56, -0.2, 0.55])
    close(logprobs.grad, [-2.56, 0.1, -1.1])
    close(found.clipped, [1.0, 0.0, 0.0])


def test_cispo_may_have_a_lower_bound() -> None:
    """r = .1 becomes .8: -.8 x -1 x -2 = -1.6."""
    found = clipped_weight(torch.tensor([-2.0]), torch.tensor([0.1]), torch.tensor([-1.0]), low=0.2, high=0.28)
    close(found.loss, [-1.6])
    close(found.clipped, [1.0])


def test_cpgd_clips_the_logarithm_of_the_ratio() -> None:
    """log 1.5 = .405465, log 1.28 = .246860, log .5 = -.693147, log .8 = -.223144.

    A = 1: min(.405465, .246860) and min(-.693147, -.223144); A = -1: min(-.405465, -.246860) and min(.693147, .223144).
    The gradient is -A wherever it is not clipped, and not -r A as PPO's.
    """
    new = leaf(-0.594535, -1.693147, -0.594535, -1.693147, -1.0)
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0])
    found = clipped_log_ratio(new, torch.full((5,), -1.0), advantage, low=0.2, high=0.28)
    found.loss.sum().backward()
    close(found.loss.detach(), [-0.246860, 0.693147, 0.405465, -0.223144, 0.0])
    close(new.grad, [0.0, -1.0, 1.0, 0.0, -1.0])
    close(found.clipped, [1.0, 0.0, 0.0, 1.0, 0.0])


def test_the_critic_is_held_near_its_old_value() -> None:
    """V 1, old .5, return 2: held at .7, max(1, 1.69). V 1, old .5, return 0: max(1, .49). V .9, old .8: both .01."""
    values = leaf(1.0, 1.0, 0.9)
    found = clipped_squared_error(values, torch.tensor([2.0, 0.0, 1.0]), torch.tensor([0.5, 0.5, 0.8]), within=0.2)
    found.sum().backward()
    close(found.detach(), [1.69, 1.0, 0.01])
    close(values.grad, [0.0, 2.0, -0.2])
