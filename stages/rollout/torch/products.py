"""Matrix products with the model's weights; on a CPU by oneDNN, in its own layout of them."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

ONEDNN = torch.backends.mkldnn.is_available()


class Products:
    """Products of inputs and the weights of `nn.Linear` modules.

    torch gives float32 on a CPU to MKL, which keeps to AVX2 on processors that are not Intel's; oneDNN takes what
    there is: 2.2 times as fast at 64 rows on an EPYC with AVX-512. It computes with blocks of the weights, which it
    would make anew at each call (another 10 % at 64 rows, 30 % at 10), so they are kept: the weights once more.
    """

    def __init__(self) -> None:
        self._blocks: dict[nn.Module, Tensor] = {}

    def __call__(self, inputs: Tensor, layer: nn.Module) -> Tensor:
        """`layer` of `inputs`."""
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        assert bias is None or isinstance(bias, Tensor)
        # torch.compile makes products of its own.
        if (
            ONEDNN
            and inputs.device.type == "cpu"
            and inputs.dtype == torch.float32
            and not torch.compiler.is_compiling()
        ):
            return torch.ops.mkldnn._linear_pointwise(inputs, self._in_blocks(layer, weight), bias, "none", [], "")
        return linear(inputs, weight, bias)

    def forget(self) -> None:
        """The weights may have changed. Nothing else would show it: torch does not count what a fused AdamW does."""
        self._blocks.clear()

    def _in_blocks(self, layer: nn.Module, weight: Tensor) -> Tensor:
        if layer not in self._blocks:
            self._blocks[layer] = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        return self._blocks[layer]
