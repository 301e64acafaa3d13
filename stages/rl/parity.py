"""The parity gate: the rollout engine computes what the policy computes, or the job stops.

A known prompt is completed greedily whenever the engine has taken weights (so after each start, resume and wake too),
and some samples of each step's rollouts are compared. Outside the limit all ranks stop with one ParityError, which says
where engine and policy part (`stages.rl.diagnosis`).
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from data.packing import pack, pack_masked
from data.trajectories import Trajectories
from stages.rl.diagnosis import ADVICE, Diagnosis, Evidence, diagnose, policy_logits
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Engine, Request, generate
from stages.rollout.parity import FP32, HALF, ParityError, differences
from stages.trainer.learner import Learner

NUM_TOKENS = 3
"""Of the known generation: the first comes from the prefill, the others through the cache."""
MOST_PROMPT = 64
"""Tokens of its prompt."""
NUM_SAMPLES = 4
"""Of each rank's rollouts in a step: a wrong weight, position or temperature shows in any of them."""


class Gate:
    """Compares the engine of each rank with the policy. All ranks call each method together."""

    def __init__(self, learner: Learner, engine: Engine, sampling: SamplingConfig, prompt: Sequence[int]) -> None:
        """`prompt` begins the known generation: any one, as long as it stays the same."""
        self.learner, self.engine, self.sampling = learner, engine, sampling
        self.prompt = list(prompt[: min(MOST_PROMPT, engine.context // 2)])
        # Cards compute in 16 bits, whose rounding depends on how the sequences lie in a batch.
        self.limit = FP32 if next(learner.policy.parameters()).device.type == "cpu" else HALF

    def check_generation(self, version: int) -> None:
        """The engine has weights of `version`, and its greedy tokens are those of the policy, as likely as there."""
        request = Request(self.prompt, seed=0, max_new_tokens=NUM_TOKENS)
        (made,) = generate(self.engine, [request], self.sampling, greedy=True)
        said = policy_logits(self.learner.policy, pack([(self.prompt, made.tokens)])).log_softmax(-1)
        likely = said.gather(-1, torch.tensor(made.tokens, device=said.device)[:, None])[:, 0]
        # Two tokens of which each is off by the limit may change places.
        behind = (said.amax(-1) - likely).nan_to_num(torch.inf).cpu().numpy() / 2
        apart = np.maximum(differences(made.logprobs, likely.cpu().numpy()), behind)
        if self.engine.version != version:
            apart[:] = np.inf
        places = len(self.prompt) + np.arange(len(made.tokens))
        self._judge([Evidence([*self.prompt, *made.tokens], places, apart)], version, "a known generation")

    @torch.no_grad()
    def check_rollouts(self, trajectories: Trajectories, step: int, version: int) -> dict[str, float]:
        """Some rollouts of `step`, before anything is learned from them: metrics over all ranks.

        Tokens that another version than `version` made are not compared.
        """
        picked = spread(len(trajectories), NUM_SAMPLES, step)
        sequences = [trajectories.sequence(index) for index in picked]
        said = self.learner.policy(pack_masked(sequences), temperature=self.sampling.temperature).logprobs
        ends = np.cumsum([mask.sum() for _, mask in sequences]).astype(int)
        evidence: list[Evidence] = []
        for index, policy in zip(picked, np.split(said.float().cpu().numpy(), ends)[:-1], strict=True):
            part = slice(trajectories.offsets[index], trajectories.offsets[index + 1])
            mask = trajectories.mask[part]
            same = trajectories.versions[part][mask] == version
            if same.any():
                apart = differences(trajectories.logprobs[part][mask][same], policy[same])
                evidence.append(Evidence(trajectories.tokens[part].tolist(), np.flatnonzero(mask)[same], apart))
        worst, mean = self._judge(evidence, version, f"rollouts of step {step}")
        return {"parity": worst, "parity_mean": mean}

    def _judge(self, evidence: list[Evidence], version: int, what: str) -> tuple[float, float]:
        """The largest and the mean difference over all ranks; where it is too much, ParityError on all of them."""
        apart = np.concatenate([np.zeros(0), *(found.apart for found in evidence)])
        ranks = _of_all_ranks([float(apart.max(initial=0)), float(apart.sum()), len(apart)])
        rank, worst = int(ranks[:, 0].argmax()), float(ranks[:, 0].max())
        count = int(ranks[:, 2].sum())
        mean = float(ranks[:, 1].sum()) / max(1, count)
        if self.limit.allows(worst, mean, count):
            return worst, mean
        # Gathered weights and forward passes need all ranks: each looks at what it has, the worst one is heard.
        nothing = Evidence(self.prompt, np.array([len(self.prompt)]), np.zeros(1))
        looked_at = max(evidence, key=lambda found: found.apart.max(), default=nothing)
        diagnosis = diagnose(self.engine, self.learner, self.sampling, looked_at, version, self.limit)
        by = f"by {worst:.1e} nats (limit {self.limit.largest:.0e}), on average by {mean:.1e} ({self.limit.mean:.0e})"
        text = f"rollout engine and policy disagree {by}, on {what}, most on rank {rank}\n{_in_words(diagnosis)}"
        raise ParityError(_from_rank(rank, text))


def spread(count: int, wanted: int, step: int) -> list[int]:
    """`wanted` of `count` places, evenly apart, others in each step; all of them where there are fewer."""
    picked = min(count, wanted)
    return sorted((place * count // picked + step) % count for place in range(picked))


def _in_words(diagnosis: Diagnosis) -> str:
    rows = [f"  {name:<13}{found}" for name, found in diagnosis.table]
    return "\n".join([*rows, f"They part in: {diagnosis.part}. {ADVICE[diagnosis.part]}"])


def _of_all_ranks(values: list[float]) -> torch.Tensor:
    """[ranks, values] float64. All ranks call it."""
    mine = torch.tensor(values, dtype=torch.float64)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    return torch.stack(everyones)


def _from_rank(rank: int, text: str) -> str:
    """The `text` of one rank, on all of them. All ranks call it."""
    box = [text]
    dist.broadcast_object_list(box, src=rank)
    return box[0]
