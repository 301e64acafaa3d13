"""What a learner's ranks publish, and what is kept of it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import Tensor

from data.job import Job
from stages.rl.messages import Source
from stages.rl.weights.fetch import Arriving
from stages.rl.weights.layout import DTYPES, Layout, views
from stages.rl.weights.publish import Publisher
from stages.rl.weights.pull import Replaced, outline_of
from stages.trainer.device import distributed
from stages.trainer.learner import Learner
from tests.stages.rl.weights.conftest import Start, learner_of


def test_the_buffer_is_a_valid_safetensors_file_of_any_tensors() -> None:
    source = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {
        f"{name}.{len(shape)}": torch.randint(0, 2, shape, generator=source).to(dtype)
        for name, dtype in DTYPES.items()
        for shape in ((), (3,), (5, 7), (0, 4))
    }
    layout = Layout(tensors)
    buffer = bytearray(layout.num_bytes)
    buffer[: len(layout.header)] = layout.header
    for name, view in views(memoryview(buffer)):
        view.copy_(tensors[name])
        assert view.numel() == 0 or view.data_ptr() % view.dtype.itemsize == 0
    read = load(bytes(buffer))
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert torch.equal(read[name].float(), tensor.float())


def publish_on_ranks(job: Job, folder: Path) -> tuple[bytes, dict[str, Any]] | None:
    (folder / "weights.json").write_text('{"host": "h", "port": 1, "token": "t"}')
    with distributed(job):
        learner = learner_of(job)
        publisher = Publisher(learner, folder / "weights.json", folder / "disk")
        found = publisher.publish(4)
        weights = {name: tensor.numpy(force=True) for name, tensor in learner.full_weights()}
        assert (found is not None) == job.is_first
        if found is None:
            publisher.close()
            return None
        assert found.version == 4
        data = (publisher.folder / found.digest).read_bytes()
        assert len(data) == found.num_bytes
        publisher.close()
        return data, weights


@pytest.mark.parametrize("world_size", [1, 2])
def test_all_ranks_gather_and_rank_0_alone_writes_what_safetensors_reads(
    ranks: Any, tmp_path: Path, world_size: int
) -> None:
    (data, weights), *others = ranks(publish_on_ranks, world_size, tmp_path)
    assert others == [None] * (world_size - 1)
    read = load(data)
    assert read.keys() == weights.keys()
    assert all((read[name].numpy() == tensor).all() for name, tensor in weights.items())


def test_the_last_two_versions_can_be_fetched_and_older_ones_have_given_their_memory_back(
    start: Start, tmp_path: Path
) -> None:
    with distributed(Job()):
        learner = learner_of(Job())
        publisher = Publisher(learner, tmp_path / "0.json", tmp_path / "disk")
        root = start(publisher.folder)
        found: list[Source] = []
        for number in range(3):
            with torch.no_grad():
                for parameter in learner.policy.parameters():
                    parameter.add_(0.01)
            source = publisher.publish(number)
            assert source
            found.append(source)
        with pytest.raises(Replaced):
            outline_of(root.caller, found[0].digest)
        assert [outline_of(root.caller, one.digest).version for one in found[1:]] == [1, 2]
        held = sum(path.stat().st_size for path in publisher.folder.iterdir())
        assert held < 2.1 * found[0].num_bytes
        publisher.close()


def changed(learner: Learner) -> dict[str, Tensor]:
    """New weights, and a copy of them."""
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.add_(0.01)
    return {name: tensor.clone() for name, tensor in learner.full_weights()}


def test_a_snapshot_is_handed_over_in_another_thread_while_the_weights_change_and_the_next_one_is_taken(
    start: Start, tmp_path: Path
) -> None:
    with distributed(Job()), ThreadPoolExecutor(1) as beside:
        learner = learner_of(Job())
        publisher = Publisher(learner, tmp_path / "0.json", tmp_path / "disk")
        root = start(publisher.folder)
        last, futures = {}, []
        for version in range(8):
            last = changed(learner)
            snapshot = publisher.snapshot(version)
            assert snapshot
            futures.append(beside.submit(publisher.hand_over, snapshot))
        found = [future.result() for future in futures]
        assert [source.version for source in found] == list(range(8)) and len({one.digest for one in found}) == 8
        arriving = Arriving()
        arriving.fetch(found[-1].digest, root.caller)
        got = dict(arriving.tensors())
        assert got.keys() == last.keys() and all(torch.equal(got[name], tensor) for name, tensor in last.items())
        assert publisher.snapshot(8)
        assert len(list(publisher.folder.glob("*.json"))) == 1  # the other one has made room for it
        publisher.close()


def test_where_the_weights_server_has_gone_its_last_address_is_told_at_once(tmp_path: Path, start: Start) -> None:
    with distributed(Job()):
        publisher = Publisher(learner_of(Job()), tmp_path / "0.json", tmp_path / "disk")
        start(publisher.folder)
        source = publisher.publish(0)
        assert source
        (tmp_path / "0.json").unlink()
        assert publisher.again(source) == source
        publisher.close()
