"""What goes over the wire between the vLLM server and its clients: Arrow batches and JSON, and never a pickle."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Request

REQUESTS = pa.schema(
    [
        ("key", pa.int64()),
        ("prompt", pa.list_(pa.int32())),
        ("seed", pa.uint64()),
        ("max_new_tokens", pa.int32()),
        ("session", pa.int64()),
    ]
)
COMPLETIONS = pa.schema(
    [
        ("key", pa.int64()),
        ("tokens", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("reason", pa.string()),
    ]
)
WEIGHTS = pa.schema(
    [
        ("name", pa.string()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("start", pa.int64()),
        ("data", pa.binary()),
    ]
)
PIECE = 2**26
"""Bytes of a tensor in one message; an Arrow binary holds less than 2 GiB."""


class Version(BaseModel):
    """Of the engine's weights."""

    model_config = ConfigDict(extra="forbid")
    version: int


class Order(BaseModel):
    """What a client says beside its new requests, each time it wants to know what has ended."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    sampling: SamplingConfig
    greedy: bool = False
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    cancel: tuple[int, ...] = ()
    """Keys of requests to be cancelled."""

    @property
    def plain(self) -> "Order":
        """Without the cancellations: how requests are sampled."""
        return self.model_copy(update={"cancel": ()})


def requests_batch(requests: Sequence[tuple[int, Request]]) -> pa.RecordBatch:
    """Requests with their keys."""
    rows = [
        {
            "key": key,
            "prompt": list(request.prompt),
            "seed": request.seed,
            "max_new_tokens": request.max_new_tokens,
            "session": request.session,
        }
        for key, request in requests
    ]
    return pa.RecordBatch.from_pylist(rows, REQUESTS)


def read_requests(batch: pa.RecordBatch, vocabulary: int) -> list[tuple[int, Request]]:
    """See `requests_batch`. ValueError for what none of it has made."""
    _is_whole(batch, REQUESTS, "key", "prompt", "seed")
    tokens = batch["prompt"].flatten()
    if tokens.null_count or any(each is not None and each <= 0 for each in batch["max_new_tokens"].to_pylist()):
        raise ValueError("values are missing, or max_new_tokens is not above 0")
    low, high = (0, 0) if not len(tokens) else (int(np.min(tokens)), int(np.max(tokens)))
    if low < 0 or high >= vocabulary:
        raise ValueError(f"tokens are not within 0 to {vocabulary - 1}")
    return [(row.pop("key"), Request(**row)) for row in batch.to_pylist()]


def completions_batch(completions: Sequence[tuple[int, Completion]]) -> pa.RecordBatch:
    """Completions with the keys of their requests."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([key for key, _ in completions], pa.int64()),
            pa.array([completion.tokens for _, completion in completions], pa.list_(pa.int32())),
            pa.array([completion.logprobs for _, completion in completions], pa.list_(pa.float32())),
            pa.array([completion.versions for _, completion in completions], pa.list_(pa.int32())),
            pa.array([completion.reason for _, completion in completions], pa.string()),
        ],
        schema=COMPLETIONS,
    )


def read_completions(batch: pa.RecordBatch) -> list[tuple[int, Completion]]:
    """See `completions_batch`."""
    return [
        (
            row["key"],
            Completion(
                row["tokens"], np.array(row["logprobs"], np.float32), np.array(row["versions"], np.int32), row["reason"]
            ),
        )
        for row in batch.to_pylist()
    ]


def weights_batches(weights: Iterable[tuple[str, Tensor]]) -> Iterator[pa.RecordBatch]:
    """Each tensor as its bytes, in pieces, one after another."""
    for name, tensor in weights:
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
        for start in range(0, max(1, len(data)), PIECE):
            row = [[name], [dtype], [shape], [start], [data[start : start + PIECE].tobytes()]]
            yield pa.RecordBatch.from_arrays(
                [pa.array(*pair) for pair in zip(row, WEIGHTS.types, strict=True)], schema=WEIGHTS
            )


def read_weights(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of `weights_batches`, one at a time. ValueError when a piece is missing."""
    name, tensor, filled, room = "", torch.empty(0), 0, 0
    for batch in batches:
        _is_whole(batch, WEIGHTS, *WEIGHTS.names)
        if len(batch) != 1 or any(size is None or size < 0 for size in batch["shape"][0].as_py()):
            raise ValueError("a piece of a tensor comes alone, and no side of the tensor is below 0")
        (row,) = batch.to_pylist()
        if filled == room:
            name, filled = row["name"], 0
            tensor = torch.empty(row["shape"], dtype=_dtype(row["dtype"]))
            room = tensor.nbytes
        data = np.frombuffer(row["data"], np.uint8)
        if (row["name"], row["start"]) != (name, filled) or filled + len(data) > room:
            raise ValueError(f"{name}: a piece of the tensor is missing")
        tensor.view(-1).view(torch.uint8).numpy()[filled : filled + len(data)] = data
        filled += len(data)
        if filled == room:
            yield name, tensor
    if filled < room:
        raise ValueError(f"{name}: a piece of the tensor is missing")


def _is_whole(batch: pa.RecordBatch | None, schema: pa.Schema, *always: str) -> None:
    if batch is None or not batch.schema.equals(schema):
        raise ValueError(f"these are no batches of {', '.join(schema.names)}")
    batch.validate(full=True)
    if any(batch[name].null_count for name in always):
        raise ValueError("values are missing")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no type of a tensor")
    return found
