"""Matrix products with weights in oneDNN's blocks."""

import torch
from torch import nn

from stages.rollout.torch.products import Products


def test_products_are_those_of_the_layer() -> None:
    products = Products()
    for bias in (False, True):
        layer = nn.Linear(40, 24, bias=bias)
        for rows in (1, 10, 64, 300):
            inputs = torch.randn(rows, 1, 40)
            with torch.inference_mode():
                torch.testing.assert_close(products(inputs, layer), layer(inputs))


def test_weights_that_a_fused_step_changed_are_seen_once_the_products_forget() -> None:
    products, layer, inputs = Products(), nn.Linear(40, 24), torch.randn(8, 40)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        layer(inputs).square().sum().backward()
        optimizer.step()
        products.forget()
        with torch.inference_mode():
            torch.testing.assert_close(products(inputs, layer), layer(inputs))
