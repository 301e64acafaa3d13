"""Where engine and policy part: weights by name, modules in their order, then tokens through the engine's own calls.

Of an engine that shows its model all of these are looked at; any other is asked to complete a few short requests.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from data.packing import Packed, pack
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Engine, Request, generate
from stages.rollout.insides import Parted, first_parted, outputs, parted_weights
from stages.rollout.parity import Limit, differences, places_in_words
from stages.trainer.attention import hidden_states, logits
from stages.trainer.learner import Learner
from stages.trainer.packed import PackedContext
from stages.trainer.policy import Policy

NUM_PROBED = 8
"""Requests and tokens of a probe."""
STALE_SHARE = 0.9
"""Of an engine's weights: an optimizer step moves all of them, so if so many differ, the step is what is missing."""
TEMPERATURES = tuple(round(0.1 * number, 1) for number in range(1, 21))
"""Tried as the one that the engine might have used."""

ADVICE = {
    "stale weights": "The engine has not taken the last update: see in the log whether its update() got every weight.",
    "embedding": "Where head and embedding are tied on one side only, one of them stays old.",
    "head": "Where head and embedding are tied on one side only, one of them stays old.",
    "layer norm": "If the weights agree, it is the epsilon or the kernel: compare rms_norm_eps in both config.json.",
    "final norm": "If the weights agree, it is the epsilon or the kernel: compare rms_norm_eps in both config.json.",
    "rope": "Compare rope_theta and the scaling of rope in both config.json, and the positions that the engine counts.",
    "attention": "If the weights agree, it is the mask, the scale or the kernel: try another attention backend.",
    "mlp": "If the weights agree, it is the activation or a fused kernel: try the engine without compilation.",
    "kernels": "Weights and modules agree: what the engine computes its layers with differs. Try engine.compile=false.",
    "model": "The engine does not show its insides: try engine.name=torch, which does, then the engine in float32.",
    "cache": "Try the engine without reuse of prefixes, and with another attention backend.",
    "temperature": "The engine must give log-probabilities of the tempered distribution, without top-k and top-p.",
    "sampling": "The model agrees, the choice of tokens does not: see what the engine does to logits before it draws.",
    "tokens": "Both agree now: other weights made these tokens, or they changed. See docs/parity.md.",
}
"""What to try, by the part in which engine and policy part."""


@dataclass(frozen=True)
class Evidence:
    """A sequence in which tokens were compared."""

    tokens: list[int]
    places: npt.NDArray[np.intp]
    """[K], where in the sequence the compared tokens are; at least one."""
    apart: npt.NDArray[np.float64]
    """[K], in nats."""

    @property
    def prompt(self) -> list[int]:
        """What comes before the first compared token."""
        return self.tokens[: int(self.places[0])]

    @property
    def prefix(self) -> list[int]:
        """What comes before the token that is most apart."""
        return self.tokens[: int(self.places[int(self.apart.argmax())])]


class Diagnosis(NamedTuple):
    """What was found."""

    part: str
    """A key of ADVICE."""
    table: list[tuple[str, str]]
    """What was looked at, and what it showed."""


@torch.no_grad()
def policy_logits(policy: Policy, packed: Packed) -> Tensor:
    """[K, vocabulary], untempered, before each of the K learned tokens. All ranks call it together."""
    seen: list[Tensor] = []
    hook = policy.model.get_decoder().register_forward_hook(lambda _, __, out: seen.append(out.last_hidden_state[0]))
    try:
        policy(packed)
    finally:
        hook.remove()
    before = torch.from_numpy(packed.learn.nonzero()[0] - 1).to(seen[0].device)
    return logits(policy.model, seen[0].index_select(0, before)).float()


class Probed(NamedTuple):
    """Short answers of the engine, beside the policy."""

    apart: npt.NDArray[np.float64]
    """[K], nats between the log-probabilities of the engine's tokens."""
    behind: npt.NDArray[np.float64]
    """[K], nats by which the policy likes another token better."""
    fits: list[float]
    """The mean of `apart` had the engine used each of TEMPERATURES."""

    @staticmethod
    def of(
        engine: Engine,
        policy: Policy,
        sampling: SamplingConfig,
        prompt: list[int],
        *,
        greedy: bool,
        requests: int = 1,
        tokens: int = NUM_PROBED,
    ) -> "Probed":
        """What comes of `requests` for `tokens` after `prompt`. All ranks call it together."""
        asked = [Request(prompt, seed, max_new_tokens=tokens) for seed in range(requests)]
        made = generate(engine, asked, sampling, greedy=greedy)
        logprobs = np.concatenate([one.logprobs for one in made])
        said = policy_logits(policy, pack([(prompt, one.tokens) for one in made]))
        drawn = torch.tensor([token for one in made for token in one.tokens], device=said.device)[:, None]

        def apart(temperature: float) -> npt.NDArray[np.float64]:
            likely = (said / temperature).log_softmax(-1).gather(-1, drawn)[:, 0]
            return differences(logprobs, likely.cpu().numpy())

        behind = (said.amax(-1) - said.gather(-1, drawn)[:, 0]).double().cpu().numpy()
        fits = [float(apart(temperature).mean()) for temperature in TEMPERATURES]
        return Probed(apart(1.0 if greedy else sampling.temperature), behind, fits)


def diagnose(
    engine: Engine, learner: Learner, sampling: SamplingConfig, evidence: Evidence, version: int, limit: Limit
) -> Diagnosis:
    """Look where they part. All ranks call it together, each with evidence of its own."""
    policy, model = learner.policy, getattr(engine, "model", None)
    own = model is policy.model
    shown = model if isinstance(model, PreTrainedModel) and not own else None
    weights, count = parted_weights(policy.model, learner.full_weights(), shown)
    prefix, prompt = evidence.prefix, evidence.prompt
    with outputs(policy.model, len(prefix)) as ours:
        prefill = Probed.of(engine, policy, sampling, prefix, greedy=True, tokens=1)
    module = None if shown is None else first_parted(ours, _modules(shown, prefix), limit.tolerance)
    decode = Probed.of(engine, policy, sampling, prompt, greedy=True)
    sampled = Probed.of(engine, policy, sampling, prompt, greedy=False, requests=NUM_PROBED)

    if engine.version != version or len(weights) >= max(2, STALE_SHARE * count):
        part = "stale weights"
    elif weights:
        part = max(weights, key=lambda weight: weight.difference).part
    elif limit.exceeded(prefill.apart):
        part = module.part if module else "kernels" if own or shown else "model"
    elif limit.exceeded(decode.apart):
        part = "cache"
    elif limit.exceeded(decode.behind / 2):
        part = "sampling"
    elif limit.exceeded(sampled.apart):
        part = "temperature" if min(sampled.fits) < sampled.apart.mean() / 4 else "sampling"
    else:
        part = "tokens"
    unseen = "the policy's own" if own else "the engine shows none"
    fit = TEMPERATURES[int(np.argmin(sampled.fits))]
    table = [
        ("tokens", places_in_words(evidence.apart > limit.largest)),
        ("version", f"{version} of the policy, {engine.version} of the engine"),
        ("weights", _weights_in_words(weights, count) if shown else unseen),
        ("prefill", _probe_in_words(prefill, limit)),
        ("modules", _module_in_words(module) if shown else unseen),
        ("decode", _probe_in_words(decode, limit)),
        ("greedy", f"the policy likes other tokens better by at most {decode.behind.max():.1e} nats"),
        ("sampled", _probe_in_words(sampled, limit)),
        ("temperature", f"{sampling.temperature:g} is set, {fit:g} fits best"),
    ]
    return Diagnosis(part, table)


def _modules(model: PreTrainedModel, prefix: list[int]) -> dict[str, Tensor]:
    """What the modules of the engine's model give, called as the policy calls its own."""
    packed = pack([(prefix, [])])
    device = next(model.parameters()).device
    tokens, positions = (torch.from_numpy(row)[None].to(device) for row in (packed.tokens, packed.positions))
    with outputs(model, len(prefix)) as found:
        hidden_states(model, tokens, positions, PackedContext(packed.lengths, device))
    return found


def _probe_in_words(probed: Probed, limit: Limit) -> str:
    return f"{'parts' if limit.exceeded(probed.apart) else 'agrees'}, by at most {probed.apart.max():.1e} nats"


def _weights_in_words(weights: list[Parted], count: int) -> str:
    worst = sorted(weights, key=lambda weight: -weight.difference)[:3]
    names = "".join(f"; {weight.name} by {weight.difference:.1e}" for weight in worst)
    return f"{len(weights)} of {count} differ{names}"


def _module_in_words(module: Parted | None) -> str:
    if module is None:
        return "all agree when they are called as the policy calls its own"
    return f"{module.name} is the first that parts, by {module.difference:.1e} of its largest output"
