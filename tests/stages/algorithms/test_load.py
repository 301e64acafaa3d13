"""What the validator accepts, and what it says of what it does not."""

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.algorithms.kinds import Batch, Kind, PolicyOutputs
from stages.algorithms.load import SHIPPED, load_algorithm
from stages.algorithms.operator import describe

NAMES = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
CLASSICS = ["ppo", "grpo", "dr_grpo", "rloo"]
MODERN = ["reinforce_pp", "dapo", "gspo", "cispo", "decoupled_ppo", "cpgd"]


def dr_grpo() -> dict[str, Any]:
    return yaml.safe_load((SHIPPED / "dr_grpo.yaml").read_text())


def write(folder: Path, content: Any) -> str:
    path = folder / "mine.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return str(path)


@pytest.mark.parametrize("name", NAMES)
def test_the_shipped_algorithms_load(name: str) -> None:
    algorithm = load_algorithm(name)
    assert algorithm.name == name
    assert algorithm.needs_values == (name == "ppo")
    assert {"importance_ratio", "entropy", "kl"} <= algorithm.update_metrics.keys()


def test_exactly_these_ten_are_shipped() -> None:
    assert sorted(CLASSICS + MODERN) == NAMES


def test_a_path_names_a_users_file(tmp_path: Path) -> None:
    assert load_algorithm(write(tmp_path, dr_grpo())).name == "mine"


def test_nodes_may_stand_in_any_order(tmp_path: Path) -> None:
    content = dr_grpo()
    for section in ("experience", "update"):
        content[section] = dict(reversed(content[section].items()))
    done = set[str]()
    for node in load_algorithm(write(tmp_path, content)).update:
        sources = {source.partition(".")[0] for source in node.takes.values()}
        assert sources & content["update"].keys() <= done
        done.add(node.name)


Change = Callable[[dict[str, Any]], None]


def put(section: str, node: str, **fields: Any) -> Change:
    return lambda content: content[section].setdefault(node, {}).update(fields)


def drop(section: str, node: str) -> Change:
    return lambda content: content[section].pop(node)


def top(**fields: Any) -> Change:
    return lambda content: content.update(fields)


MISTAKES: dict[str, tuple[Change, str]] = {
    "unknown operator": (
        put("update", "ratio", operator="importance_ration"),
        r"update\.ratio: there is no operator 'importance_ration'; did you mean importance_ratio",
    ),
    "missing input": (
        put("update", "ratio", takes={"new": "policy.logprobs"}),
        r"update\.ratio: importance_ratio needs the input 'old' \(per token\); of this kind the file has "
        r"rollout_logprobs, .*policy\.logprobs.* these operators give it: .*policy_forward\.logprobs",
    ),
    "nothing gives it": (
        put("update", "ratio", takes={"new": "polcy.logprobs", "old": "rollout_logprobs"}),
        r"update\.ratio: nothing gives 'polcy\.logprobs' for the input 'new'; did you mean policy\.logprobs.*\?; "
        r".*these operators give it: policy_forward\.logprobs",
    ),
    "an output that the node does not have": (
        put("update", "ratio", takes={"new": "policy.logits", "old": "rollout_logprobs"}),
        r"nothing gives 'policy\.logits'.*policy gives policy\.logprobs, policy\.entropy, policy\.values",
    ),
    "a node with several outputs taken whole": (
        put("update", "ratio", takes={"new": "policy", "old": "rollout_logprobs"}),
        r"policy gives policy\.logprobs",
    ),
    "kind": (
        put("update", "surrogate", takes={"ratio": "ratio", "advantage": "centred"}),
        r"update\.surrogate: 'advantage' takes what is per token, but centred is per sample; over_tokens makes",
    ),
    "cycle": (
        put("update", "ratio", takes={"new": "kl", "old": "ratio"}),
        r"update: each of these waits for the one before it: .*ratio -> ratio",
    ),
    "unknown value": (
        put("update", "surrogate", values={"hihg": 0.3}),
        r"update\.surrogate: clipped_surrogate has no value 'hihg'; did you mean high\?; it has low, high",
    ),
    "value of a wrong type": (
        put("update", "surrogate", values={"high": "much"}),
        r"update\.surrogate: the value 'high' of clipped_surrogate: 'much': input should be a valid number",
    ),
    "value that is not finite": (
        put("update", "surrogate", values={"high": math.inf}),
        r"update\.surrogate: the value 'high' of clipped_surrogate: inf: input should be a finite number",
    ),
    "yes where a number is meant": (
        put("update", "surrogate", values={"high": True}),
        r"update\.surrogate: the value 'high' of clipped_surrogate: True, but it should not be true or false",
    ),
    "value out of its range": (
        put("update", "surrogate", values={"low": 1.5}),
        r"update\.surrogate: the value 'low' of clipped_surrogate: 1\.5: input should be less than or equal to 1",
    ),
    "logarithm of nothing": (
        put(
            "update",
            "surrogate",
            operator="clipped_log_ratio",
            takes={"new": "policy.logprobs", "old": "rollout_logprobs", "advantage": "advantage"},
            values={"low": 1.0},
        ),
        r"update\.surrogate: the value 'low' of clipped_log_ratio: 1\.0: input should be less than 1",
    ),
    "missing value": (
        put("update", "loss", values={}),
        r"update\.loss: constant_mean needs the value 'tokens'",
    ),
    "unknown input": (
        put("update", "loss", takes={"of": "surrogate.loss", "weight": "ratio"}),
        r"update\.loss: constant_mean has no input 'weight'; it takes of",
    ),
    "no loss": (drop("update", "loss"), r"update: has no node 'loss'"),
    "a loss that is no scalar": (
        put("update", "loss", operator="over_tokens", takes={"of": "reward"}, values={}),
        r"update\.loss: must be a scalar",
    ),
    "unused node": (
        put("update", "spare", operator="kl_k3", takes={"new": "policy.logprobs", "old": "rollout_logprobs"}),
        r"update\.spare: nobody takes what it gives",
    ),
    "update before experience": (
        put("experience", "mean", takes={"of": "ratio"}),
        r"experience\.mean: 'of' takes ratio, but the experience runs before the update",
    ),
    "whole batch in the update": (
        put("update", "white", operator="whiten", takes={"of": "ratio"}),
        r"update\.white: whiten compares samples of the whole batch: it belongs in experience",
    ),
    "two forward passes": (
        put("update", "again", operator="policy_forward"),
        r"update\.again: a second forward pass would give the same: take from policy",
    ),
    "no forward pass": (
        put("update", "loss", takes={"of": "advantage"}),
        r"update\.loss: does not follow from policy_forward in the update, so it has no gradient",
    ),
    "name of a given quantity": (
        put("experience", "reward", operator="group_mean", takes={"of": "length"}),
        r"experience\.reward: is the name of a given quantity",
    ),
    "name in both sections": (
        put("experience", "ratio", operator="group_mean", takes={"of": "length"}),
        r"ratio: is in experience and in update",
    ),
    "unknown key": (top(minibatch=3), r"minibatch: unknown key; did you mean minibatches\?; the keys are descri"),
    "unknown key of a node": (
        put("update", "ratio", inputs={}),
        r"update\.ratio\.inputs: .*; the keys are operator, takes, values",
    ),
    "no minibatch": (top(minibatches=0), r"minibatches: input should be greater than 0"),
    "unknown metric": (top(metrics={"entropy": "policy.entropi"}), r"metrics: nothing gives 'policy\.entropi'"),
    "metric of a given quantity": (top(metrics={"mean": "reward"}), r"metrics: mean: take a node's output"),
    "skip by what comes later": (top(skip_where_zero="ratio"), r"skip_where_zero: ratio must be of the experience"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_names_the_file_the_node_and_the_way_out(mistake: str, tmp_path: Path) -> None:
    change, message = MISTAKES[mistake]
    content = dr_grpo()
    change(content)
    with pytest.raises(ValueError, match=rf"mine\.yaml: {'' if message.startswith('update') else '.*'}{message}"):
        load_algorithm(write(tmp_path, content))


def test_an_unknown_name_lists_what_is_shipped() -> None:
    with pytest.raises(ValueError, match=r"'grop' is neither a shipped algorithm \(.*dr_grpo, grpo.*did you mean grpo"):
        load_algorithm("grop")


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes("description: é\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"mine\.yaml: not YAML: 'utf-8' codec can't decode"):
        load_algorithm(str(tmp_path / "mine.yaml"))


def test_what_is_not_a_mapping_or_has_a_key_twice_is_refused(tmp_path: Path) -> None:
    for text, message in {
        "- a\n": "an algorithm file has the keys",
        "update: [": "not YAML",
        "update:\n  a: {operator: policy_forward}\n  a: {operator: kl_k3}\n": "the name a is there twice",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_algorithm(write(tmp_path, text))


def test_an_operator_without_kinds_is_our_mistake() -> None:
    def lost(of: torch.Tensor) -> torch.Tensor:
        return of

    with pytest.raises(TypeError, match=r"lost\(of\): annotate it"):
        describe(lost, whole_batch=False)


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Valid updates: nodes per token, each taking from those before it, and a loss that sums all up."""
    made = ["rollout_logprobs", "policy.logprobs"]
    nodes: dict[str, dict[str, Any]] = {"policy": {"operator": "policy_forward"}}
    for index in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(["importance_ratio", "kl_k3"] + ["squared_error"] * (index > 0)))
        names = ("values", "returns") if kind == "squared_error" else ("new", "old")
        takes = {name: draw(st.sampled_from(made)) for name in names}
        nodes[f"n{index}"] = {"operator": kind, "takes": takes | ({"new": "policy.logprobs"} if index == 0 else {})}
        made.append(f"n{index}")
    total = ""
    for index, name in enumerate(made[2:]):
        nodes[f"m{index}"] = {"operator": "token_mean", "takes": {"of": name}}
        if total:
            takes = {"base": total, "other": f"m{index}"}
            nodes[f"s{index}"] = {"operator": "add", "takes": takes, "values": {"weight": 0.5}}
        total = f"s{index}" if total else f"m{index}"
    nodes["loss"] = {"operator": "add", "takes": {"base": total, "other": total}, "values": {"weight": 1}}
    return nodes


def batch() -> Batch:
    logprobs = torch.tensor([-1.0, -2.0, -0.5])
    lengths = torch.tensor([2, 1])
    return Batch(lengths, torch.tensor([0, 0]), 1, 3, 2, lambda t: t, lambda _: PolicyOutputs(logprobs, None, None))


@settings(max_examples=60, deadline=None)
@given(graphs(), st.randoms())
def test_any_valid_graph_gives_one_loss_in_whatever_order_it_is_written(nodes: Any, random: Any) -> None:
    given_tensors = {"rollout_logprobs": torch.tensor([-1.1, -1.9, -0.7])}
    losses: list[float | str] = []
    for _ in range(2):
        items = list(nodes.items())
        random.shuffle(items)
        with TemporaryDirectory() as folder:
            algorithm = load_algorithm(write(Path(folder), {"update": dict(items)}))
        assert [node.name for node in algorithm.update if node.name not in nodes] == []
        assert algorithm.kinds["loss"] is Kind.SCALAR
        try:
            losses.append(algorithm.run_update(batch(), given_tensors)["loss"].item())
        except ArithmeticError:
            losses.append("not finite")
    assert losses[0] == losses[1]


@settings(max_examples=100, deadline=None)
@given(graphs(), st.data())
def test_a_broken_graph_is_a_value_error_that_names_the_file(nodes: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for name in nodes if name != "policy"]))
    how = data.draw(st.sampled_from(["drop", "rename", "operator", "source", "input", "value", "loop"]))
    node = nodes[name]
    key = data.draw(st.sampled_from(sorted(node["takes"])))
    if how == "drop":
        del nodes[name]
    elif how == "rename":
        nodes[f"{name}_"] = nodes.pop(name)
    elif how == "operator":
        node["operator"] = data.draw(st.text(max_size=8))
    elif how == "source":
        node["takes"][key] = data.draw(st.text(max_size=8))
    elif how == "input":
        del node["takes"][key]
    elif how == "value":
        node["values"] = {"surprise": 1}
    else:
        node["takes"][key] = name
    with TemporaryDirectory() as folder, pytest.raises(ValueError, match=r"mine\.yaml"):
        load_algorithm(write(Path(folder), {"update": nodes}))


def test_loading_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys; from stages.algorithms.load import load_algorithm as f; f('ppo'); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
