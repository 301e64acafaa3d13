import pytest
import torch
from torch import Tensor, nn

from data.job import Job
from stages.trainer import linear
from stages.trainer.config import ModelConfig
from stages.trainer.linear import LEAST_WORK, Linear, use_onednn
from stages.trainer.packed import padding
from stages.trainer.policy import load_policy

WIDE, NARROW, ROWS = 96, 64, 2000


def gradients(layer: nn.Linear, inputs: Tensor, by_outputs: Tensor) -> list[Tensor]:
    """The outputs, and the gradients of inputs and weights."""
    layer.zero_grad()
    inputs = inputs.clone().requires_grad_()
    outputs = layer(inputs)
    outputs.backward(by_outputs)
    return [outputs.detach(), *(given.grad for given in (inputs, *layer.parameters()) if given.grad is not None)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("width", "out"), [(WIDE, NARROW), (NARROW, WIDE)])
def test_products_and_gradients_are_those_of_a_plain_linear_layer_and_the_same_each_time(
    bias: bool, width: int, out: int
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(width, out, bias=bias)
    inputs, by_outputs = torch.randn(2, ROWS, width), torch.randn(2, ROWS, out)
    assert inputs.numel() * out >= LEAST_WORK
    plain = gradients(layer, inputs, by_outputs)
    use_onednn(layer)
    first, again = gradients(layer, inputs, by_outputs), gradients(layer, inputs, by_outputs)
    assert len(first) == len(plain) == 3 + bias
    for found, same, expected in zip(first, again, plain, strict=True):
        assert torch.equal(found, same)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_layer_that_is_frozen_or_watched_by_nobody_has_no_gradient() -> None:
    layer = nn.Linear(WIDE, WIDE).requires_grad_(False)
    use_onednn(layer)
    inputs = torch.randn(ROWS, WIDE, requires_grad=True)
    layer(inputs).sum().backward()
    assert inputs.grad is not None
    assert layer.weight.grad is None
    with torch.no_grad():
        assert not layer(inputs).requires_grad


def test_16_bits_and_few_rows_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(WIDE, WIDE)
    use_onednn(layer)
    monkeypatch.setattr(linear, "_Linear", None)
    assert layer(torch.randn(3, WIDE)).shape == (3, WIDE)
    assert layer.to(torch.bfloat16)(torch.randn(ROWS, WIDE, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_the_policys_layers_are_onednns_and_its_weights_have_the_names_they_had(
    tiny: ModelConfig, one_rank: Job
) -> None:
    policy = load_policy(tiny, 1, value_head=True)
    layers = [module for module in policy.modules() if isinstance(module, nn.Linear)]
    assert all(type(layer) is Linear for layer in layers)
    assert len(layers) == 2 * 7 + 2
    assert "model.model.layers.0.self_attn.q_proj.weight" in policy.state_dict()


def test_rows_on_a_cpu_have_few_sizes_and_little_padding() -> None:
    counts = range(1, 20_000)
    assert len({count + padding(count) for count in counts}) < 200
    assert all(padding(count) <= max(7, count / 16) for count in counts)
