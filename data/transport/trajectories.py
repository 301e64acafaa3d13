"""Trajectories as Arrow batches: the arrays themselves, without a copy, and checked on arrival as a stranger's.

A row is a sequence. What has one entry a token is a list column over the flat array, so a batch is the Trajectories'
own memory, and what arrives is used where Flight has put it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data.trajectories import FLAT, Trajectories

BATCH_TOKENS = 2**22
"""About 56 MB. What is longer goes in several batches, of whole sequences."""
COLUMNS: dict[str, Any] = {
    "tokens": np.int32,
    "mask": np.bool_,
    "logprobs": np.float32,
    "versions": np.int32,
    "prompt_lengths": np.int32,
    "rewards": np.float32,
    "terms": np.float32,
    "finished": np.bool_,
    "limits": np.int32,
    "graded": np.bool_,
    "groups": np.int32,
    "seeds": np.int64,
}
"""Their types in memory. On the wire truth is a byte: Arrow's own bits would be a copy."""
IDS = "prompt_ids"
assert {*COLUMNS, IDS, "offsets"} == {field.name for field in fields(Trajectories)}, "a column has no type on the wire"


@lru_cache(maxsize=8)
def schema(terms: int) -> pa.Schema:
    """Of Trajectories whose reward has so many terms."""
    return pa.schema([*((name, _type(name, terms)) for name in COLUMNS), (IDS, pa.string())])


def batches(trajectories: Trajectories) -> Iterator[pa.RecordBatch]:
    """All sequences, in order; without any there is one batch without rows."""
    terms = trajectories.terms.shape[1]
    arrays = [_array(name, getattr(trajectories, name), trajectories.offsets, terms) for name in COLUMNS]
    whole = pa.RecordBatch.from_arrays([*arrays, pa.array(trajectories.prompt_ids, pa.string())], schema=schema(terms))
    begin = 0
    while begin < len(trajectories) or begin == 0:
        room = trajectories.offsets[begin] + BATCH_TOKENS
        end = max(begin + 1, int(np.searchsorted(trajectories.offsets, room, side="right")) - 1)
        yield whole.slice(begin, end - begin)
        begin = end


def from_batches(stream: Iterable[pa.RecordBatch]) -> Trajectories:
    """What `batches` made. Raises ValueError that says what is wrong with it; nothing that comes is believed."""
    parts = [read_batch(batch) for batch in stream]
    if not parts:
        raise ValueError("no trajectories have come")
    if len({part.terms.shape[1] for part in parts}) > 1:
        raise ValueError("the batches differ in their terms")
    return parts[0] if len(parts) == 1 else Trajectories.joined(parts)


def read_batch(batch: pa.RecordBatch) -> Trajectories:
    """One batch, see `from_batches`."""
    kind: Any = batch.schema.field("terms").type if "terms" in batch.schema.names else None
    terms = kind.list_size if isinstance(kind, pa.FixedSizeListType) else 1
    if not batch.schema.equals(schema(terms)):
        raise ValueError("the columns are not those of trajectories")
    batch.validate(full=True)  # offsets that point outside, text that is no text
    if any(batch.column(name).null_count for name in batch.schema.names):
        raise ValueError("values are missing")
    offsets = _offsets(batch)
    columns = {name: _values(name, batch, terms) for name in COLUMNS}
    trajectories = Trajectories(**columns, offsets=offsets, prompt_ids=tuple(batch.column(IDS).to_pylist()))
    _check(trajectories)
    return trajectories


def _type(name: str, terms: int) -> pa.DataType:
    plain = pa.uint8() if COLUMNS[name] is np.bool_ else pa.from_numpy_dtype(COLUMNS[name])
    if name in FLAT:
        return pa.large_list(pa.field("item", plain, nullable=False))
    return pa.list_(pa.field("item", plain, nullable=False), terms) if name == "terms" else plain


def _array(name: str, values: npt.NDArray[Any], offsets: npt.NDArray[np.int64], terms: int) -> pa.Array:
    assert values.dtype == COLUMNS[name], f"{name} has type {values.dtype}"
    flat = np.ascontiguousarray(values).reshape(-1)
    array = pa.array(flat.view(np.uint8) if COLUMNS[name] is np.bool_ else flat)
    if name in FLAT:
        return pa.LargeListArray.from_arrays(pa.array(offsets), array, type=_type(name, terms))
    return pa.FixedSizeListArray.from_arrays(array, type=_type(name, terms)) if name == "terms" else array


def _offsets(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Of all flat columns, which have to agree."""
    found = [_list(batch, name).offsets.to_numpy() for name in FLAT]
    found = [offsets - offsets[0] for offsets in found]
    if any(not np.array_equal(offsets, found[0]) for offsets in found[1:]):
        raise ValueError(f"{', '.join(FLAT)} differ in length")
    return found[0]


def _list(batch: pa.RecordBatch, name: str) -> Any:
    return batch.column(name)


def _values(name: str, batch: pa.RecordBatch, terms: int) -> npt.NDArray[Any]:
    column: Any = batch.column(name)
    flat = column
    # Not `flatten`, which imports half a second of pyarrow at its first call.
    if name in FLAT:
        flat = column.values.slice(column.offsets[0].as_py(), column.offsets[-1].as_py() - column.offsets[0].as_py())
    elif name == "terms":
        flat = column.values.slice(column.offset * terms, len(column) * terms)
    if flat.null_count:
        raise ValueError(f"{name}: values are missing")
    values: npt.NDArray[Any] = flat.to_numpy(zero_copy_only=True)
    if COLUMNS[name] is np.bool_:
        if values.size and values.max() > 1:
            raise ValueError(f"{name}: neither true nor false")
        return values.view(np.bool_)
    return values.reshape(-1, terms) if name == "terms" else values


def _check(t: Trajectories) -> None:
    """That the values mean what `Trajectories` says of them. Of each token only by passes that make at most a byte."""
    lengths, mask, graded = t.lengths, t.mask, t.graded
    chosen = t.versions >= 0
    same = np.array_equal(chosen, mask)
    rules = {
        "tokens are below 0": _least(t.tokens) < 0,
        "logprobs are no numbers": not _are_numbers(t.logprobs),
        "logprobs of tokens that nobody chose": np.greater(t.logprobs != 0, mask).any(),
        "versions of tokens that nobody chose": not same and np.greater(chosen, mask).any(),
        "versions are below 0": (not same and np.less(chosen, mask).any()) or _least(t.versions) < -1,
        "prompt_lengths are not within the sequence": ((t.prompt_lengths < 0) | (t.prompt_lengths > lengths)).any(),
    }
    if not any(rules.values()):  # without prompts that are within it, there is no saying what is
        rules["mask is true within the prompt"] = _any_within(mask, t.offsets[:-1], t.prompt_lengths)
    rules |= {
        "rewards are no numbers": not _are_numbers(t.rewards),
        "terms are no numbers": not _are_numbers(t.terms[graded]),
        "limits are below 0": _least(t.limits) < 0,
        "groups are below 0": _least(t.groups) < 0,
    }
    for what, wrong in rules.items():
        if wrong:
            raise ValueError(what)
    if not all(text.isascii() for text in t.prompt_ids):
        raise ValueError("prompt_ids are not ASCII")


def _least(values: npt.NDArray[np.int32]) -> int:
    return int(values.min(initial=0))


def _are_numbers(values: npt.NDArray[np.float32]) -> bool:
    return bool(np.isfinite(values).all())


def _any_within(mask: npt.NDArray[np.bool_], begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]) -> bool:
    """Whether it is true at one of the `lengths` places from `begins` on, of one or more of them."""
    begins, lengths = begins[lengths > 0], lengths[lengths > 0]
    places = np.stack([begins, begins + lengths], axis=1).reshape(-1)
    if places.size and places[-1] == len(mask):
        places = places[:-1]
    return bool(places.size) and bool(np.logical_or.reduceat(mask, places)[::2].any())
