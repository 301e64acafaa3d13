"""Real ranks: whichever node is ready first on each, their collective calls meet."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml

from data.job import Job
from stages.algorithms.kinds import Batch, PolicyOutputs
from stages.algorithms.load import load_algorithm
from stages.trainer.device import distributed

OWN = """
import time

import torch.distributed as dist

from stages.algorithms.kinds import Batch, PerToken
from stages.algorithms.operator import operator

@operator()
def late(of: PerToken, *, rank: int) -> PerToken:
    time.sleep(0.5 if dist.get_rank() == rank else 0)
    return of

@operator(whole_batch=True)
def total(batch: Batch, of: PerToken) -> PerToken:
    return of * 0 + batch.reduce(of.sum())

@operator(whole_batch=True)
def totals(batch: Batch, of: PerToken) -> PerToken:
    return of * 0 + batch.reduce(of).sum()
"""


def node(operator: str, of: str, **values: Any) -> dict[str, Any]:
    return {"operator": operator, "takes": {"of": of}, "values": values}


def play(job: Job, name: str) -> list[float]:
    def reduce(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        dist.all_reduce(tensor)
        return tensor

    with distributed(job):
        logprobs = torch.tensor([-1.0, -2.0, -3.0]) * (job.rank + 1)
        lengths = torch.tensor([3])
        outputs = PolicyOutputs(logprobs, None, None)
        batch = Batch(lengths, lengths * 0, 1, 6, 2, reduce, lambda _: outputs)
        found = load_algorithm(name).run_experience(batch, {"rollout_logprobs": logprobs})
        return [found[key][0].item() for key in ("left", "right", "third")]


def test_ranks_on_which_other_nodes_are_ready_first_do_not_wait_for_ever(ranks: Any, tmp_path: Path) -> None:
    # Which of `left` and `right` could run first is another one on each rank, and their tensors have other shapes.
    experience = {
        "slow0": node("late", "rollout_logprobs", rank=0),
        "slow1": node("late", "rollout_logprobs", rank=1),
        "left": node("total", "slow0"),
        "right": node("totals", "slow1"),
        "third": node("total", "rollout_logprobs"),
    }
    update = {"policy": {"operator": "policy_forward"}, "loss": node("token_mean", "policy.logprobs")}
    content = {"operators": ["own.py"], "experience": experience, "update": update}
    content["metrics"] = {name: name for name in ("left", "right", "third")}
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    assert ranks(play, 2, str(tmp_path / "mine.yaml")) == [[-18.0, -18.0, -18.0]] * 2
