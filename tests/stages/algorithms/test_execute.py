"""How a graph runs: side by side, in order where it must, and with the same bits as one after the other."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from stages.algorithms.algorithm import Algorithm
from stages.algorithms.kinds import Batch, Kind, PolicyOutputs
from stages.algorithms.load import load_algorithm
from stages.algorithms.node import NodeError
from stages.algorithms.threads import start

OWN = """
import threading
import time

from stages.algorithms.kinds import Batch, PerSample, PerToken, Scalar
from stages.algorithms.operator import operator

both, calls = threading.Barrier(2), []

@operator()
def meet(of: PerToken) -> PerToken:
    both.wait(timeout=10)
    return of * 1.5

@operator()
def bend(of: PerToken, *, by: float = 1.0) -> PerToken:
    calls.append(threading.current_thread().name)
    return (of * by).exp() + of * of

@operator()
def shaky(of: PerToken, *, failures: int) -> PerToken:
    calls.append(0)
    if len(calls) <= failures:
        raise OSError("the disk is away")
    return of

@operator()
def slow(of: PerToken, *, seconds: float) -> PerToken:
    time.sleep(seconds)
    return of

@operator(whole_batch=True)
def agree(batch: Batch, of: PerToken) -> PerToken:
    calls.append(threading.current_thread().name)
    return of + batch.reduce(of.sum())

@operator()
def cheat(batch: Batch, of: PerToken) -> PerToken:
    return of + batch.reduce(of.sum())

@operator()
def short(of: PerToken) -> PerToken:
    return of[:2]

@operator()
def number(of: PerToken) -> Scalar:
    return 3.0

@operator()
def logarithm(of: PerToken) -> PerToken:
    return of.log()

@operator()
def cores(of: PerSample) -> PerSample:
    import torch

    return of * 0 + torch.get_num_threads()

@operator()
def card(of: PerSample) -> PerSample:
    import torch

    return of * 0 + torch.cuda.current_device()

@operator()
def leave(of: PerToken) -> PerToken:
    raise SystemExit(0)

@operator()
def cut(of: PerToken) -> PerToken:
    return of.detach() * 2

@operator()
def spoil(of: PerToken) -> PerToken:
    return of.clamp_(max=-1)

@operator()
def mean(of: PerToken) -> Scalar:
    return of.mean()
"""


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """An algorithm of these sections, with the operators above."""

    def algorithm(**sections: Any) -> Algorithm:
        (tmp_path / "own.py").write_text(OWN)
        update = {"policy": {"operator": "policy_forward"}, **sections.pop("update", {})}
        update.setdefault("loss", {"operator": "mean", "takes": {"of": "policy.logprobs"}})
        content = {"operators": ["own.py"], **sections, "update": update}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return load_algorithm(str(tmp_path / "mine.yaml"))

    return algorithm


def node(operator: str, of: str, **more: Any) -> dict[str, Any]:
    return {"operator": operator, "takes": {"of": of}, **more}


def batch(logprobs: Tensor) -> Batch:
    lengths = torch.tensor([len(logprobs)])
    outputs = PolicyOutputs(logprobs, logprobs.square(), logprobs.exp())
    return Batch(lengths, torch.tensor([0]), 1, len(logprobs), 1, lambda t: t, lambda _: outputs)


def given_tensors(count: int) -> dict[str, Tensor]:
    return {"rollout_logprobs": torch.linspace(-2, -0.1, count), "reward": torch.ones(1)}


def test_branches_run_side_by_side_in_the_experience_and_in_the_update(make: Any) -> None:
    experience = {"a": node("meet", "rollout_logprobs"), "b": node("meet", "rollout_logprobs")}
    update = {
        "left": node("meet", "policy.logprobs"),
        "right": node("meet", "policy.logprobs"),
        "sum": {"operator": "importance_ratio", "takes": {"new": "left", "old": "right"}},
        "loss": node("mean", "sum"),
    }
    algorithm = make(experience=experience, update=update, metrics={"a": "a", "b": "b"})
    for _ in range(3):  # each waits for the other, so one after the other would never end
        logprobs = torch.linspace(-1, 0, 5, requires_grad=True)
        known = algorithm.run_experience(batch(logprobs), given_tensors(5))
        torch.testing.assert_close(known["a"], known["rollout_logprobs"] * 1.5)
        assert algorithm.run_update(batch(logprobs), known)["loss"].requires_grad


def branches(count: int) -> dict[str, Any]:
    """`count` branches over the same log-probabilities, summed up two by two."""
    nodes: dict[str, Any] = {}
    for index in range(count):
        nodes[f"x{index}"] = node("bend", "policy.logprobs", values={"by": 0.1 + 0.37 * index})
        nodes[f"y{index}"] = {"operator": "importance_ratio", "takes": {"new": f"x{index}", "old": "policy.entropy"}}
        nodes[f"m{index}"] = node("token_mean", f"y{index}")
        other = f"s{index - 1}" if index else f"m{index}"
        takes = {"base": f"m{index}", "other": other}
        nodes[f"s{index}"] = {"operator": "add", "takes": takes, "values": {"weight": 0.7}}
    nodes["loss"] = {
        "operator": "add",
        "takes": {"base": f"s{count - 1}", "other": f"s{count - 1}"},
        "values": {"weight": 1},
    }
    return nodes


def learn(algorithm: Algorithm, one_after_the_other: bool) -> tuple[Tensor, Tensor]:
    """The loss, and the gradient of weights that the policy's outputs are made of."""
    generator = torch.Generator().manual_seed(4)
    weights = torch.randn(64, 501, generator=generator).requires_grad_()
    logprobs = -(weights * torch.randn(64, 1, generator=generator)).sum(0).square() * 0.01
    if one_after_the_other:
        made = dict[str, Tensor]()
        for each in algorithm.update:
            made |= each.run(batch(logprobs), made, {Kind.TOKEN: 501, Kind.SAMPLE: 1, Kind.GROUP: 1})
    else:
        made = algorithm.run_update(batch(logprobs), {})
    made["loss"].backward()
    assert weights.grad is not None
    return made["loss"].detach(), weights.grad


def test_loss_and_gradient_are_bit_for_bit_those_of_one_thread(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make(update=branches(7))
    loss, wanted = learn(algorithm, one_after_the_other=True)
    for _ in range(20):
        found_loss, found = learn(algorithm, one_after_the_other=False)
        assert torch.equal(found_loss, loss) and torch.equal(found, wanted)
    monkeypatch.setattr("stages.algorithms.side_by_side.number_in_order", lambda *_: None)
    unordered = [learn(algorithm, one_after_the_other=False)[1] for _ in range(20)]
    assert any(not torch.equal(found, wanted) for found in unordered), "the case is one in which the order shows"


def calls(algorithm: Algorithm, name: str) -> list[Any]:
    """What the operators of the test noted."""
    (operator,) = {each.operator.function for each in algorithm.experience if each.operator.name == name}
    return operator.__globals__["calls"]


def test_nodes_that_talk_to_other_ranks_run_in_the_callers_thread_in_the_order_of_the_file(make: Any) -> None:
    experience = {
        "wait": node("slow", "rollout_logprobs", values={"seconds": 0.2}),
        "first": node("agree", "wait"),
        "second": node("agree", "rollout_logprobs"),  # could run at once, on a rank where `wait` is quick
    }
    algorithm = make(experience=experience, metrics={name: name for name in experience})
    order: list[float] = []

    def reduce(tensor: Tensor) -> Tensor:
        order.append(round(tensor.item(), 3))
        return tensor * 2

    whole = batch(torch.zeros(3))
    given = {"rollout_logprobs": torch.tensor([-1.0, -2.0, -3.0])}
    found = algorithm.run_experience(replace(whole, reduce=reduce), given)
    assert set(calls(algorithm, "agree")) == {threading.current_thread().name}
    assert order == [-6.0, -6.0] and torch.equal(found["first"], found["second"])
    assert [each.name for each in algorithm.experience if each.in_order] == ["first", "second"]


def test_a_chain_needs_no_thread(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.algorithms.side_by_side.start", lambda _: pytest.fail("a thread was asked for"))
    chain = {"a": node("bend", "rollout_logprobs"), "b": node("bend", "a"), "c": node("bend", "b")}
    algorithm = make(experience=chain, metrics={"c": "c"})
    algorithm.run_experience(batch(torch.zeros(3)), given_tensors(3))
    assert set(calls(algorithm, "bend")) == {threading.current_thread().name}


SHIPPED = {
    "ratio": {"operator": "importance_ratio", "takes": {"new": "policy.logprobs", "old": "rollout_logprobs"}},
    "kl": {"operator": "kl_k3", "takes": {"new": "policy.logprobs", "old": "rollout_logprobs"}},
    "first": node("token_mean", "ratio"),
    "second": node("token_mean", "kl"),
    "loss": {"operator": "add", "takes": {"base": "first", "other": "second"}, "values": {"weight": 0.1}},
}


def test_small_arithmetic_needs_no_thread_and_a_large_batch_gives_the_same(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, started = make(update=SHIPPED), list[int]()
    monkeypatch.setattr("stages.algorithms.side_by_side.start", lambda task: (started.append(1), start(task)))
    found = list[tuple[Tensor, Tensor]]()
    for small in (2**16, 3):
        monkeypatch.setattr("stages.algorithms.execute.SMALL", small)
        logprobs = torch.linspace(-1, 0, 5, requires_grad=True)
        loss = algorithm.run_update(batch(logprobs * 1.1), given_tensors(5))["loss"]
        loss.backward()
        assert logprobs.grad is not None and bool(started) == (small == 3)
        found.append((loss, logprobs.grad))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_thread_means_the_card_that_the_caller_means(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with cards: the current one belongs to a thread, and is the first in a new one."""
    current = threading.local()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(current, "card", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda card: setattr(current, "card", card))
    torch.cuda.set_device(3)
    algorithm = make(experience={name: node("card", "reward") for name in "ab"}, metrics={"a": "a", "b": "b"})
    found = algorithm.run_experience(batch(torch.zeros(1)), {"reward": torch.zeros(1)})
    assert [found["a"].item(), found["b"].item()] == [3, 3]


def test_a_thread_records_no_gradient_where_the_caller_does_not(make: Any) -> None:
    algorithm = make(
        experience={"a": node("meet", "rollout_logprobs"), "b": node("meet", "rollout_logprobs")},
        metrics={"a": "a", "b": "b"},
    )
    known = {"rollout_logprobs": torch.zeros(3, requires_grad=True)}
    with torch.no_grad():
        found = algorithm.run_experience(batch(torch.zeros(3)), known)
    assert not found["a"].requires_grad and not found["b"].requires_grad
    found = algorithm.run_experience(batch(torch.zeros(3)), known)
    assert found["a"].requires_grad and found["b"].requires_grad


def test_a_node_is_tried_again_as_often_as_it_says_and_each_error_is_told(make: Any, capfd: Any) -> None:
    shaky = node("shaky", "rollout_logprobs", values={"failures": 2}, retries=2)
    algorithm = make(experience={"a": shaky}, metrics={"a": "a"})
    assert len(algorithm.run_experience(batch(torch.zeros(3)), given_tensors(3))["a"]) == 3
    told = capfd.readouterr().out
    for attempt in (1, 2):
        assert f"experience.a: shaky failed in attempt {attempt} of 3: OSError: the disk is away; it is tried" in told
    assert len(calls(algorithm, "shaky")) == 3


@pytest.mark.parametrize("alone", [True, False])
def test_a_node_that_goes_on_failing_ends_the_run_with_its_name_and_its_attempt(make: Any, alone: bool) -> None:
    shaky = node("shaky", "rollout_logprobs", values={"failures": 9}, retries=1)
    other = {} if alone else {"b": node("bend", "rollout_logprobs")}
    algorithm = make(experience={"a": shaky, **other}, metrics={"a": "a", **({} if alone else {"b": "b"})})
    with pytest.raises(NodeError, match=r"experience\.a: shaky failed in attempt 2 of 2: OSError: the disk") as caught:
        algorithm.run_experience(batch(torch.zeros(3)), given_tensors(3))
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("seconds", [0.4, 60])
def test_a_node_over_its_limit_ends_the_run(make: Any, seconds: float) -> None:
    slow = node("slow", "rollout_logprobs", values={"seconds": seconds}, seconds=0.2)
    algorithm = make(experience={"a": slow, "b": node("bend", "a")}, metrics={"b": "b"})
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"experience\.a: slow took longer than its 0\.2 seconds"):
        algorithm.run_experience(batch(torch.zeros(3)), given_tensors(3))
    assert time.monotonic() - began < 20


def test_a_limit_holds_for_a_node_that_another_thread_began(make: Any) -> None:
    experience = {
        "before": node("slow", "rollout_logprobs", values={"seconds": 0.1}),
        "hangs": node("slow", "before", values={"seconds": 60}, seconds=0.2),
        "beside": node("slow", "rollout_logprobs", values={"seconds": 0.3}),
        "all": node("agree", "beside"),
        "end": {"operator": "importance_ratio", "takes": {"new": "hangs", "old": "all"}},
    }
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"experience\.hangs: slow took longer"):
        make(experience=experience, metrics={"end": "end"}).run_experience(batch(torch.zeros(3)), given_tensors(3))
    assert time.monotonic() - began < 20


def test_what_talks_to_other_ranks_may_neither_be_tried_again_nor_be_limited(make: Any) -> None:
    for key in ({"retries": 1}, {"seconds": 3.0}):
        with pytest.raises(
            ValueError, match=r"experience\.a: agree runs on all ranks together.*leave the others waiti"
        ):
            make(experience={"a": node("agree", "rollout_logprobs", **key)}, metrics={"a": "a"})
        with pytest.raises(ValueError, match=r"update\.policy: policy_forward runs on all ranks together"):
            make(update={"policy": {"operator": "policy_forward", **key}})


BROKEN = {
    "cheat": r"experience\.a: cheat failed .*only an @operator\(whole_batch=True\) may talk to other ranks",
    "short": r"experience\.a: short gave a tensor of shape \[2\], where per token means the shape \[3\]",
    "spoil": r"experience\.a: rollout_logprobs was changed in place, by spoil or one that ran beside it",
    "leave": r"experience\.a: leave failed in attempt 1 of 1: SystemExit: 0",
    "number": r"experience\.a: number gave float, where a scalar means the shape \[\]",
}


@pytest.mark.parametrize("operator", BROKEN)
def test_an_operator_that_breaks_its_promise_is_named_with_what_it_gave(make: Any, operator: str) -> None:
    algorithm = make(experience={"a": node(operator, "rollout_logprobs")}, metrics={"a": "a"})
    with pytest.raises((ValueError, NodeError), match=BROKEN[operator]):
        algorithm.run_experience(batch(torch.zeros(3)), given_tensors(3))


def test_a_node_that_loses_the_gradient_is_named(make: Any) -> None:
    algorithm = make(update={"a": node("cut", "policy.logprobs"), "loss": node("mean", "a")})
    with pytest.raises(ValueError, match=r"update\.a: cut takes what has a gradient and gives what has none"):
        algorithm.run_update(batch(torch.zeros(3, requires_grad=True)), {})


def test_a_loss_that_is_not_finite_names_the_first_node_that_made_it_so(make: Any) -> None:
    update = {"a": node("logarithm", "policy.logprobs"), "loss": node("mean", "a")}
    algorithm = make(update=update)
    with pytest.raises(
        ArithmeticError, match=r"mine\.yaml: update\.a: logarithm gave a value that is not finite.*nothing"
    ):
        algorithm.run_update(batch(torch.tensor([-1.0, -2.0])), {})


def test_what_the_update_takes_and_what_decides_on_skipping_are_finite(make: Any) -> None:
    experience = {"a": node("logarithm", "rollout_logprobs"), "b": node("bend", "a")}
    update = {"c": {"operator": "policy_gradient", "takes": {"logprobs": "policy.logprobs", "advantage": "b"}}}
    update["loss"] = node("mean", "c")
    found = r"experience\.a: logarithm gave a value that is not finite; of what it takes, nothing is"
    with pytest.raises(ArithmeticError, match=found):
        make(experience=experience, update=update).run_experience(batch(torch.zeros(3)), given_tensors(3))
    selecting = make(experience=experience, skip_where_zero="b", resample=1)
    with pytest.raises(ArithmeticError, match=found):
        selecting.run_selection(batch(torch.zeros(3)), given_tensors(3))
    odd = {"rollout_logprobs": torch.tensor([float("nan")])}
    with pytest.raises(
        ArithmeticError, match=r"experience\.a: .*; of what it takes, rollout_logprobs is not finite eith"
    ):
        selecting.run_selection(batch(torch.zeros(1)), odd)


def test_a_thread_computes_on_as_many_cores_as_the_caller(make: Any) -> None:
    algorithm = make(
        experience={"a": node("cores", "reward"), "b": node("cores", "reward")}, metrics={"a": "a", "b": "b"}
    )
    before = torch.get_num_threads()
    try:
        for cores in (1, 2, 1):
            torch.set_num_threads(cores)
            found = algorithm.run_experience(batch(torch.zeros(1)), {"reward": torch.zeros(1)})
            assert [found["a"].item(), found["b"].item()] == [cores, cores]
    finally:
        torch.set_num_threads(before)


def test_a_policy_that_gives_too_little_is_named(make: Any) -> None:
    algorithm = make(update={"loss": node("mean", "policy.entropy")})
    empty = Batch(
        torch.tensor([2]), torch.tensor([0]), 1, 2, 1, lambda t: t, lambda _: PolicyOutputs(torch.zeros(2), None, None)
    )
    with pytest.raises(ValueError, match=r"update\.policy: policy_forward gave NoneType for entropy"):
        algorithm.run_update(empty, {})
