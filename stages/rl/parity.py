"""The parity gate: the rollout engine computes what the policy computes, or the job stops.

Known prompts are completed greedily whenever the engine has taken weights (so after each start, resume and wake too),
and some samples of the rollouts are compared before they are written down. Each rank judges its own engine; where one
is outside the limit all ranks stop with one ParityError, which says where they part (`stages.rl.diagnosis`).
"""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from data.packing import micro_batches, pack, pack_masked
from data.trajectories import Trajectories
from stages.rl.config import RLConfig
from stages.rl.diagnosis import ADVICE, Diagnosis, Evidence, diagnose, policy_logits
from stages.rl.probe import MOST_PROMPT, NUM_PROMPTS, NUM_TOKENS
from stages.rollout.engine import Engine, Request, generate
from stages.rollout.parity import FP32, HALF, ParityError, differences
from stages.trainer.device import largest
from stages.trainer.learner import Learner

NUM_SAMPLES = 4
"""Of a rank's rollouts in a round: a wrong weight, position or temperature shows in any of them."""


class Comparison(NamedTuple):
    """Of what the engines of all ranks said with what the policy says of it."""

    ranks: npt.NDArray[np.float64]
    """[ranks, 4], the same on all of them: whether it is outside the limit, the largest difference, sum and count."""
    evidence: list[Evidence]
    """This rank's own."""

    @property
    def passes(self) -> bool:
        """Whether engine and policy agree, on every rank."""
        return not self.ranks[:, 0].any()


class Gate:
    """Compares the engine of each rank with the policy. All ranks call each method together."""

    def __init__(self, learner: Learner, engine: Engine | None, rl: RLConfig, prompts: Sequence[Sequence[int]]) -> None:
        """The first of `prompts` begin the known generations: any, as long as they stay the same.

        Without an engine, which in asynchronous mode the actors have, only rollouts are compared.
        """
        self.learner, self.engine = learner, engine
        self.sampling, self.micro_batch_tokens = rl.sampling, rl.micro_batch_tokens
        most = min(MOST_PROMPT, engine.context // 2) if engine else MOST_PROMPT
        self.prompts = [list(prompt[:most]) for prompt in prompts[:NUM_PROMPTS]]
        # Cards compute in 16 bits, whose rounding depends on how the sequences lie in a batch.
        self.limit = FP32 if next(learner.policy.parameters()).device.type == "cpu" else HALF

    def check_generation(self, version: int) -> None:
        """The engine has weights of `version`, and its greedy tokens are those of the policy, as likely as there."""
        assert self.engine is not None, "there is nothing to generate with"
        requests = [Request(prompt, seed=0, max_new_tokens=NUM_TOKENS) for prompt in self.prompts]
        made = generate(self.engine, requests, self.sampling, greedy=True)
        sequences = [(prompt, one.tokens) for prompt, one in zip(self.prompts, made, strict=True)]
        said = policy_logits(self.learner.policy, pack(sequences)).log_softmax(-1)
        chosen = torch.tensor([token for one in made for token in one.tokens], device=said.device)
        likely = said.gather(-1, chosen[:, None])[:, 0]
        # Two tokens of which each is off by the limit may change places.
        behind = (said.amax(-1) - likely).nan_to_num(torch.inf).cpu().numpy() / 2
        apart = np.maximum(differences(np.concatenate([one.logprobs for one in made]), likely.cpu().numpy()), behind)
        if self.engine.version != version:
            apart[:] = np.inf
        ends = np.cumsum([len(one.tokens) for one in made])
        evidence = [
            Evidence([*prompt, *tokens], len(prompt) + np.arange(len(tokens)), found)
            for (prompt, tokens), found in zip(sequences, np.split(apart, ends[:-1]), strict=True)
        ]
        compared = self._judge(evidence)
        if not compared.passes:
            self.refuse(compared, version, "a known generation")

    @torch.no_grad()
    def compare(self, trajectories: Trajectories, step: int, version: int) -> Comparison:
        """Some rollouts of `step` with the policy, before anything is learned from them.

        Tokens that another version than `version` made are not compared.
        """
        picked = spread(len(trajectories), NUM_SAMPLES, step)
        parts = micro_batches(trajectories.lengths[picked].tolist(), self.micro_batch_tokens)
        parts += [[]] * (largest(len(parts)) - len(parts))
        evidence: list[Evidence] = []
        for part in parts:
            indices = [picked[place] for place in part]
            sequences = [trajectories.sequence(index) for index in indices]
            said = self.learner.policy(pack_masked(sequences), temperature=self.sampling.temperature).logprobs
            ends = np.cumsum([mask.sum() for _, mask in sequences]).astype(int)
            for index, policy in zip(indices, np.split(said.float().cpu().numpy(), ends)[:-1], strict=True):
                evidence += _evidence(trajectories, index, policy, version)
        return self._judge(evidence)

    def refuse(self, compared: Comparison, version: int, what: str) -> NoReturn:
        """Look where they part, which may take minutes, and raise one ParityError on all ranks."""
        outside, most, _, _ = compared.ranks.T
        rank = int(np.where(outside, most, -1).argmax())
        _, worst, total, count = compared.ranks[rank]
        limit, mean = self.limit, total / count
        by = f"by {worst:.1e} nats (limit {limit.largest:.0e}), on average by {mean:.1e} ({limit.mean:.0e})"
        text = f"rollout engine and policy disagree {by}, on {what}, most on rank {rank}"
        if self.engine is None:
            raise ParityError(f"{text}. A step with rl.mode=synchronous looks for the place where they part")
        # Gathered weights and forward passes need all ranks: each looks at what it has, the worst one is heard.
        nothing = Evidence(self.prompts[0], np.array([len(self.prompts[0])]), np.zeros(1))
        looked_at = max(compared.evidence, key=lambda found: found.apart.max(), default=nothing)
        with self.learner.job.slow("looking where engine and policy part"):
            diagnosis = diagnose(self.engine, self.learner, self.sampling, looked_at, version, self.limit)
        raise ParityError(_from_rank(rank, f"{text}\n{_in_words(diagnosis)}"))

    def _judge(self, evidence: list[Evidence]) -> Comparison:
        apart = np.concatenate([np.zeros(0), *(found.apart for found in evidence)])
        mine = torch.tensor(
            [self.limit.exceeded(apart), apart.max(initial=0), apart.sum(), len(apart)], dtype=torch.float64
        )
        everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, mine)
        return Comparison(torch.stack(everyones).numpy(), evidence)


def spread(count: int, wanted: int, step: int) -> list[int]:
    """`wanted` of `count` places, evenly apart, others in each step; all of them where there are fewer."""
    picked = min(count, wanted)
    return sorted((place * count // picked + step) % count for place in range(picked))


def metrics_of(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """The largest and the mean difference, in nats, over the comparisons of a step and all ranks."""
    _, most, sums, counts = np.concatenate([compared.ranks for compared in comparisons]).T
    return {"parity": float(most.max()), "parity_mean": float(sums.sum() / max(1, counts.sum()))}


def _evidence(trajectories: Trajectories, index: int, policy: npt.NDArray[np.float32], version: int) -> list[Evidence]:
    """Of one sample, for whose tokens the policy gives these log-probabilities; none without tokens of `version`."""
    part = slice(trajectories.offsets[index], trajectories.offsets[index + 1])
    mask = trajectories.mask[part]
    same = trajectories.versions[part][mask] == version
    if not same.any():
        return []
    apart = differences(trajectories.logprobs[part][mask][same], policy[same])
    return [Evidence(trajectories.tokens[part].tolist(), np.flatnonzero(mask)[same], apart)]


def _in_words(diagnosis: Diagnosis) -> str:
    rows = [f"  {name:<13}{found}" for name, found in diagnosis.table]
    return "\n".join([*rows, f"They part in: {diagnosis.part}. {ADVICE[diagnosis.part]}"])


def _from_rank(rank: int, text: str) -> str:
    """The `text` of one rank, on all of them. All ranks call it."""
    box = [text]
    dist.broadcast_object_list(box, src=rank)
    return box[0]
