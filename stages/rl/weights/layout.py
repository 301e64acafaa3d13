"""The bytes of a version: a valid safetensors file, whose tensors lie where they can be used as they are."""

import json
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = 8
"""Bytes of the header's length, little-endian."""


class Layout:
    """Where each of some tensors lies."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Of their shapes and types alone: those of a sharded policy count with their whole shapes."""
        ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))  # all are aligned then
        entries: dict[str, object] = {}
        end = 0
        for name, tensor in ordered:
            begin, end = end, end + math.prod(tensor.shape) * tensor.dtype.itemsize
            entries[name] = {
                "dtype": NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % LENGTH)
        self.header = len(text).to_bytes(LENGTH, "little") + text
        self.num_bytes = len(self.header) + end


def views(data: memoryview) -> Iterator[tuple[str, Tensor]]:
    """The tensors that lie in `data`, which is writable: no byte is copied, and what changes there changes them."""
    begin = LENGTH + int.from_bytes(data[:LENGTH], "little")
    entries = json.loads(bytes(data[LENGTH:begin]))
    for name, entry in entries.items():
        dtype, shape, (first, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        assert (end - first) == math.prod(shape) * dtype.itemsize, name
        if first == end:
            yield name, torch.empty(shape, dtype=dtype)
        else:
            count = (end - first) // dtype.itemsize
            yield name, torch.frombuffer(data, dtype=dtype, count=count, offset=begin + first).view(shape)
