"""What decides on skipping, and what the experience takes from the reference."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from stages.algorithms.algorithm import Algorithm
from stages.algorithms.kinds import Batch
from stages.algorithms.load import load_algorithm


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """An algorithm of these sections, with a loss."""

    def algorithm(**sections: Any) -> Algorithm:
        update = {"policy": {"operator": "policy_forward"}, **sections.pop("update", {})}
        update["loss"] = node("token_mean", "policy.logprobs")
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**sections, "update": update}, sort_keys=False))
        return load_algorithm(str(tmp_path / "mine.yaml"))

    return algorithm


def node(operator: str, of: str) -> dict[str, Any]:
    return {"operator": operator, "takes": {"of": of}}


TWO = Batch(torch.tensor([1, 1]), torch.tensor([0, 0]), 1, 2, 2, lambda t: t, lambda _: pytest.fail("a forward pass"))


def test_the_selection_runs_by_itself_and_no_more_than_it(make: Any) -> None:
    experience = {
        "mean": node("group_mean", "reward"),
        "centred": {"operator": "subtract_group", "takes": {"of": "reward", "group": "mean"}},
        "old": {"operator": "policy_forward"},
        "a": node("token_mean", "old.logprobs"),
    }
    algorithm = make(experience=experience, metrics={"a": "a"}, skip_where_zero="centred", resample=3)
    given = {"reward": torch.tensor([1.0, 0.0]), "rollout_logprobs": torch.zeros(2)}
    assert algorithm.resample == 3 and [each.name for each in algorithm.selection] == ["mean", "centred"]
    assert algorithm.run_selection(TWO, given).tolist() == [0.5, -0.5]


RESAMPLE = {
    "needs skip_where_zero": {},
    "advantage waits for the forward pass old, but rounds are judged before any": {
        "skip_where_zero": "advantage",
        "experience": {
            "old": {"operator": "policy_forward"},
            "advantage": {"operator": "kl_k3", "takes": {"new": "old.logprobs", "old": "rollout_logprobs"}},
        },
    },
    "advantage waits for the forward pass frozen": {
        "skip_where_zero": "advantage",
        "experience": {
            "frozen": {"operator": "reference_forward"},
            "advantage": {"operator": "kl_k3", "takes": {"new": "frozen", "old": "rollout_logprobs"}},
        },
    },
}


@pytest.mark.parametrize("message", RESAMPLE)
def test_resampling_needs_a_quantity_that_is_known_without_a_forward_pass(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"mine\.yaml: resample: .*{message}"):
        make(resample=2, **RESAMPLE[message])
    make(**RESAMPLE[message])


def test_the_reference_is_computed_once_and_in_the_experience(make: Any) -> None:
    frozen = {"operator": "reference_forward"}
    algorithm = make(experience={"frozen": frozen}, metrics={"m": "frozen"})
    assert algorithm.needs_reference and not make().needs_reference
    whole = replace(TWO, reference=lambda: torch.tensor([-1.0, -2.0]))
    assert algorithm.run_experience(whole, {"rollout_logprobs": torch.zeros(2)})["frozen"].tolist() == [-1.0, -2.0]
    with pytest.raises(ValueError, match=r"update\.frozen: the reference never changes: compute it in experience"):
        make(update={"frozen": frozen}, metrics={"m": "frozen"})
    with pytest.raises(
        ValueError, match=r"experience\.again: a second forward pass would give the same: take from fro"
    ):
        make(experience={"frozen": frozen, "again": frozen}, metrics={"m": "frozen"})
