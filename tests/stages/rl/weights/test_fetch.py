"""From a learner's ranks into an engine that generates."""

import copy
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from data.job import Job
from stages.rl.messages import Source
from stages.rl.weights.fetch import Arriving, Weights
from stages.rl.weights.layout import Layout
from stages.rl.weights.pieces import Outline
from stages.rl.weights.publish import Publisher
from stages.rl.weights.pull import traffic
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Request
from stages.rollout.torch.engine import TorchEngine
from stages.trainer.config import ArchitectureConfig, ModelConfig, OptimizerConfig
from stages.trainer.device import distributed
from stages.trainer.learner import Learner
from stages.trainer.policy import load_policy
from tests.stages.rl.weights.conftest import Server, Start, learner_of, until

Publish = Callable[..., Outline]


class Taking:
    """An engine at the boundary: keeps what it is given."""

    def __init__(self, several: bool = False) -> None:
        self.taken: list[tuple[int, bytes]] = []
        self._several = several

    def update(self, weights: Any, version: int) -> None:
        (_, tensor), *others = weights
        assert bool(others) == self._several
        self.taken.append((version, tensor.numpy().tobytes()))


def source(outline: Outline, server: Server) -> Source:
    return Source(version=outline.version, digest=outline.digest, num_bytes=outline.num_bytes, endpoint=server.endpoint)


def real(number: int, num_bytes: int = 10_000) -> tuple[bytes, bytes]:
    """A safetensors file of one tensor, and the tensor."""
    data = random.Random(number).randbytes(num_bytes)
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return Layout({"w": tensor}).header + data, data


@pytest.fixture
def version(published: Publish) -> Callable[..., tuple[Outline, bytes]]:
    def publish(number: int, **changed: Any) -> tuple[Outline, bytes]:
        file, data = real(number)
        return published(number, file, **changed), data

    return publish


def test_an_engine_takes_new_weights_in_the_middle_of_a_generation(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job()
    with distributed(job):
        learner = learner_of(job)
        announced = tmp_path / "0.json"
        publisher = Publisher(learner, announced, tmp_path / "disk")
        root = start(publisher.folder)
        relay = start(root.announced, "s1")
        engine = TorchEngine(copy.deepcopy(learner.policy.model), -1)
        weights = Weights(root.announced, "me", "s1")

        def comes(version: int) -> Source:
            found = publisher.publish(version)
            assert found
            weights.want(found.model_copy(update={"endpoint": relay.endpoint}))
            assert weights.wait(60)
            return found

        comes(3)
        assert weights.hand_to(engine)
        engine.start(SamplingConfig(max_new_tokens=40, slots=2))
        engine.add(0, Request([1, 5, 9], seed=1))
        assert not engine.step()
        with torch.no_grad():
            for parameter in learner.policy.parameters():
                parameter.add_(0.01)
        found = comes(4)
        taken = weights.hand_to(engine)
        assert taken and taken.digest == found.digest
        assert weights.hand_to(engine) is None
        ended: list[Any] = []
        while not ended:
            ended = engine.step()
        assert {3, 4} == set(ended[0][1].versions.tolist())
        expected = dict(learner.full_weights())
        assert all(torch.equal(expected[name], tensor) for name, tensor in engine.model.named_parameters())
        said = publisher.traffic()
        assert said and said.crossed == {version: {"s1": found.num_bytes} for version in (3, 4)}
        third = comes(5)  # the same weights under another number cross no link again
        assert third.digest == found.digest
        assert weights.hand_to(engine) and engine.version == 5
        assert sum(places["s1"] for places in traffic(root.caller).crossed.values()) == 2 * found.num_bytes
        weights.close()
        publisher.close()
    assert capsys.readouterr().out == ""  # all of it went through memory


class Slow(Arriving):
    """Needs a second for a version."""

    def _put(self, index: int, data: memoryview) -> None:
        assert self._outline
        time.sleep(1.0 / len(self._outline))
        super()._put(index, data)


@pytest.mark.parametrize("relayed", [False, True])
def test_actors_that_need_a_second_for_a_fetch_get_on_while_the_learner_publishes_every_300_ms(
    start: Start, tmp_path: Path, relayed: bool
) -> None:
    wide = {"hidden_size": 640, "intermediate_size": 1280, "num_layers": 2, "num_heads": 4}
    with distributed(Job()):
        policy = load_policy(ModelConfig(architecture=ArchitectureConfig(max_positions=64, **wide)), 1)
        learner = Learner(policy, OptimizerConfig(), 1e-2, 12, Job())
        publisher = Publisher(learner, tmp_path / "0.json", tmp_path / "disk")
        root = start(publisher.folder)
        server = start(root.announced, "s1") if relayed else root
        members = [Weights(root.announced, f"m{number}") for number in range(3)]
        for weights in members:
            weights._arriving = Slow()
        engines = [Taking(several=True) for _ in members]
        for version in range(20):
            began = time.monotonic()
            with torch.no_grad():
                next(iter(learner.policy.parameters())).add_(0.01)
            found = publisher.publish(version)
            assert found
            # They do not begin together: what one reads is not what the other one reads.
            for weights in members[: 1 + version // 2]:
                weights.want(found.model_copy(update={"endpoint": server.endpoint}))
            while time.monotonic() < began + 0.3:
                for weights, engine in zip(members, engines, strict=True):
                    weights.hand_to(engine)
                time.sleep(0.01)
        for weights in members:
            weights.close()
        publisher.close()
    for engine in engines:
        versions = [version for version, _ in engine.taken]
        assert len(versions) >= 3 and versions == sorted(set(versions)), versions
        assert versions[-1] >= 12, versions


def test_when_a_relay_dies_its_member_goes_on_elsewhere_from_the_piece_where_it_was(
    start: Start, version: Any, tmp_path: Path
) -> None:
    one, data = version(1)
    root, spare = start(tmp_path / "published"), start(tmp_path / "published")
    file = tmp_path / "published" / one.digest
    whole = file.read_bytes()
    file.write_bytes(whole[:6500] + b"\0\1" + whole[6502:])
    relay, engine = start(root.announced, "s1"), Taking()
    weights = Weights(spare.announced, "me", "s2", patience=0.1)
    weights.want(source(one, relay))
    until(lambda: traffic(relay.caller).refused > 1)
    arriving = weights._arriving
    until(lambda: arriving._have == 6)
    os.kill(relay.process.pid, signal.SIGSTOP)  # it is not to fetch what is whole again
    file.write_bytes(whole)
    root.process.kill()
    relay.process.kill()
    assert weights.wait(60)
    assert weights.trouble == ""
    weights.hand_to(engine)
    assert engine.taken == [(1, data)]
    assert traffic(spare.caller).crossed == {1: {"s2": one.num_bytes - 6000}}
    weights.close()


def test_a_corrupted_stream_is_refused_and_fetched_again_elsewhere(start: Start, version: Any, tmp_path: Path) -> None:
    one, data = version(1)
    bad = tmp_path / "bad"
    bad.mkdir()
    for path in (tmp_path / "published").iterdir():
        (bad / path.name).write_bytes(path.read_bytes())
    torn = bytearray((bad / one.digest).read_bytes())
    torn[3333] ^= 4
    (bad / one.digest).write_bytes(torn)
    wrong, right, engine = start(bad), start(tmp_path / "published"), Taking()
    weights = Weights(right.announced, "me", patience=3600)
    weights.want(source(one, wrong))
    until(lambda: "piece 3 of version 1" in weights.trouble)
    assert weights.hand_to(engine) is None  # nothing of it is used
    weights.want(source(one, right))  # as the coordinator says, once it knows
    assert weights.wait(60)
    weights.hand_to(engine)
    assert engine.taken == [(1, data)]
    weights.close()


def test_a_fetch_of_a_version_that_was_replaced_takes_the_newer_one(start: Start, version: Any, tmp_path: Path) -> None:
    (one, _), root, engine = version(1), start(tmp_path / "published"), Taking()
    two, data = version(2, replaces=one)
    weights = Weights(root.announced)
    weights.want(source(one, root))
    weights.want(None)  # nothing new
    weights.want(source(two, root))
    assert weights.wait(60)
    weights.hand_to(engine)
    assert engine.taken == [(2, data)]
    weights.close()
