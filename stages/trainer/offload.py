"""Tensors leave the card, or the memory of a CPU, while a phase goes on that has no use for them."""

import ctypes
import tempfile
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from io import BufferedRandom

import torch
from torch import Tensor, UntypedStorage, nn
from torch.distributed.tensor import DTensor

from stages.trainer.learner import Learner
from stages.trainer.policy import Policy
from stages.trainer.shards import reshard

PIECE = 2**24
"""Bytes that go to a file or come from it at a time."""


@contextmanager
def away(tensors: Iterable[Tensor]) -> Generator[None]:
    """For the length of the block `tensors` have no memory; afterwards they are what they were, bit for bit.

    They stay the same objects: only their storages, each once, shrink to nothing and grow again, so whoever holds the
    tensors (the optimizer, FSDP) need not know. From a card they go to pinned memory of the host; on a CPU into a file
    without a name in the folder for temporary files, which ends with the process, however that ends. After an error in
    the block they stay away. Nobody may look at them in the block.
    """
    storages = _storages(tensors)
    with tempfile.TemporaryFile() as file:
        piece = torch.empty(PIECE, dtype=torch.uint8)  # one for all, or what is freed in between adds to the peak
        parked = [_leave(storage, file, piece) for storage in storages]
        _settle(storages)
        for storage in storages:
            storage.resize_(0)
        _give_back()
        yield
        file.seek(0)
        for storage, (num_bytes, host) in zip(storages, parked, strict=True):
            storage.resize_(num_bytes)
            _return(storage, host, file, piece)
        _settle(storages)


def optimizer_state(learner: Learner) -> list[Tensor]:
    """All that the optimizer keeps of its steps. Gradients are not there: `Learner.step` has dropped them."""
    return [value for state in learner.optimizer.state.values() for value in state.values()]


def parameters(*policies: Policy) -> list[Tensor]:
    """The weights of `policies`, in shards where they are in shards."""
    found: list[Tensor] = []
    for policy in policies:
        reshard(policy)
        for parameter in policy.parameters():
            _own(parameter)
            found.append(parameter)
    return found


def _own(parameter: nn.Parameter) -> None:
    """Give the weight memory of its own when it is a view of a model's file, which cannot shrink."""
    if not isinstance(parameter, DTensor) and not parameter.untyped_storage().resizable():
        parameter.data = parameter.data.clone()


def _storages(tensors: Iterable[Tensor]) -> list[UntypedStorage]:
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in map(Tensor.detach, tensors))
    found = {storage.data_ptr(): storage for storage in (tensor.untyped_storage() for tensor in local)}
    return [storage for storage in found.values() if storage.nbytes()]


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _leave(storage: UntypedStorage, file: BufferedRandom, piece: Tensor) -> tuple[int, Tensor | None]:
    """Copy what is in `storage`: its size, and where it is, None in the file."""
    content = _bytes(storage)
    if storage.device.type == "cpu":
        # A storage that numpy has seen can no longer shrink, so it sees a piece at a time, elsewhere.
        for part in content.split(PIECE):
            piece[: len(part)].copy_(part)
            file.write(piece[: len(part)].numpy().data)
        return len(content), None
    host = torch.empty(len(content), dtype=torch.uint8, pin_memory=True)
    return len(content), host.copy_(content, non_blocking=True)


def _return(storage: UntypedStorage, host: Tensor | None, file: BufferedRandom, piece: Tensor) -> None:
    content = _bytes(storage)
    if host is not None:
        content.copy_(host, non_blocking=True)
        return
    for part in content.split(PIECE):
        file.readinto(piece[: len(part)].numpy().data)
        part.copy_(piece[: len(part)])


def _give_back() -> None:
    """Let the kernel have what was freed on the host, which glibc keeps for later; elsewhere nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _settle(storages: Sequence[UntypedStorage]) -> None:
    """Wait for copies between host and card."""
    if any(storage.device.type == "cuda" for storage in storages):
        torch.cuda.synchronize()
