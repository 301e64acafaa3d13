"""What the policy says of known prompts, sent along with its weights: an actor's engine has to say the same.

The parity gate of asynchronous mode. There engine and policy are never in one process, but the policy's own greedy
answers fit into a message.
"""

from collections.abc import Sequence

import numpy as np
import torch

from data.packing import pack
from stages.rl.diagnosis import policy_logits
from stages.rl.messages import Message
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Engine, Request, generate
from stages.rollout.parity import FP32, HALF, Limit, ParityError, differences
from stages.trainer.learner import Learner

NUM_PROMPTS = 4
"""That are known, also to `stages.rl.parity`: the more tokens, the tighter the limit of 16 bits."""
MOST_PROMPT = 64
"""Tokens of each."""
NUM_TOKENS = 3
"""Of each answer: the first comes from the prefill, the others through the cache."""


class Probe(Message):
    """Greedy answers of the policy."""

    prompts: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    """Of the answer to each prompt."""
    logprobs: tuple[tuple[float, ...], ...]
    """Of these tokens, in nats."""
    half: bool
    """Whether the policy computes in 16 bits."""

    @property
    def limit(self) -> Limit:
        """By how much an engine may differ."""
        return HALF if self.half else FP32


@torch.no_grad()
def make_probe(learner: Learner, prompts: Sequence[Sequence[int]]) -> Probe:
    """Let the policy answer the first of `prompts`, token by token. All ranks call it together."""
    shown = [list(prompt[:MOST_PROMPT]) for prompt in prompts[:NUM_PROMPTS]]
    tokens, logprobs = [list[int]() for _ in shown], [list[float]() for _ in shown]
    for _ in range(NUM_TOKENS):
        # The token after the last one is asked for; whichever it is, the policy's view before it is the same.
        said = policy_logits(learner.policy, pack([([*a, *b], [0]) for a, b in zip(shown, tokens, strict=True)]))
        likely, chosen = said.log_softmax(-1).max(-1)
        for place, (token, logprob) in enumerate(zip(chosen.tolist(), likely.tolist(), strict=True)):
            tokens[place].append(token)
            logprobs[place].append(logprob)
    return Probe(
        prompts=tuple(map(tuple, shown)),
        tokens=tuple(map(tuple, tokens)),
        logprobs=tuple(map(tuple, logprobs)),
        half=next(learner.policy.parameters()).device.type != "cpu",
    )


@torch.no_grad()
def probe_again(learner: Learner, last: Probe) -> Probe:
    """The same for newer weights, by one forward pass: of each answer of `last` as much as the policy still says.

    What it says now instead of the first token that differs comes behind. All ranks call it together.
    """
    shown = [(list(prompt), list(answer)) for prompt, answer in zip(last.prompts, last.tokens, strict=True)]
    likely, chosen = policy_logits(learner.policy, pack(shown)).log_softmax(-1).max(-1)
    tokens, logprobs, at = list[tuple[int, ...]](), list[tuple[float, ...]](), 0
    for _, answer in shown:
        part = slice(at, at + len(answer))
        now = chosen[part].tolist()
        same = int(np.cumprod([a == b for a, b in zip(now, answer, strict=True)]).sum())
        tokens.append(tuple(now[: same + 1]))
        logprobs.append(tuple(likely[part].tolist()[: same + 1]))
        at = part.stop
    return last.model_copy(update={"tokens": tuple(tokens), "logprobs": tuple(logprobs)})


def check_probe(engine: Engine, probe: Probe, sampling: SamplingConfig) -> float:
    """Let the engine answer, while nothing is in flight. Returns the largest difference in nats; ParityError beyond it.

    An answer is compared up to the first token that differs: two that are about equally likely may change places, but
    then they are as likely.
    """
    requests = [Request(list(prompt), seed=0, max_new_tokens=NUM_TOKENS) for prompt in probe.prompts]
    made = generate(engine, requests, sampling, greedy=True)
    apart: list[float] = []
    for one, tokens, logprobs in zip(made, probe.tokens, probe.logprobs, strict=True):
        same = int(np.cumprod([a == b for a, b in zip(one.tokens, tokens, strict=False)]).sum())
        compared = min(same + 1, len(one.tokens), len(tokens))
        theirs = np.array(logprobs[:compared], np.float32)
        apart += differences(one.logprobs[:compared], theirs).tolist()
    if probe.limit.exceeded(np.array(apart)):
        raise ParityError(
            f"this actor's engine and the learner's policy disagree by {max(apart):.1e} nats on the known prompts "
            f"(limit {probe.limit.largest:.0e}) with the same weights; see docs/parity.md"
        )
    return max(apart, default=0.0)
