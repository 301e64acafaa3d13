"""The parity gate: engines that are broken on purpose, and where the diagnosis says that they part."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from data.job import Job
from data.packing import pack
from data.trajectories import Trajectories
from stages.rl.config import RLConfig
from stages.rl.diagnosis import policy_logits
from stages.rl.parity import Gate, metrics_of, spread
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Request, generate
from stages.rollout.parity import FP32, HALF, ParityError, differences, places_in_words
from stages.rollout.torch.cache import DecodeContext
from stages.rollout.torch.engine import TorchEngine
from stages.trainer import attention
from stages.trainer.config import ArchitectureConfig, ModelConfig, OptimizerConfig
from stages.trainer.device import distributed
from stages.trainer.learner import Learner
from stages.trainer.policy import load_policy

EOS = 2
PROMPT = [3, 5, 4, 6, 3]
SAMPLING = SamplingConfig(max_new_tokens=10, slots=8)
ARCHITECTURE = ArchitectureConfig(
    hidden_size=32, num_layers=2, num_heads=2, num_key_value_heads=1, intermediate_size=64, max_positions=64,
    alphabet="0123456789",
)  # fmt: skip


@pytest.fixture
def learner() -> Iterator[Learner]:
    policy = load_policy(ModelConfig(architecture=ARCHITECTURE), 3)
    torch.manual_seed(4)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(1 + torch.rand_like(weight)) if weight.dim() < 2 else weight.normal_(0, 0.4)
    with distributed(Job()):
        yield Learner(policy, OptimizerConfig(), 0.01, 10, Job())


def copy(learner: Learner, **changed: Any) -> Any:
    """A copy of the model, as an engine beside a sharded policy has; `changed` is another config."""
    config = type(learner.policy.model.config).from_dict(learner.policy.model.config.to_dict() | changed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME)
    return model.eval().requires_grad_(False)


def engine_of(learner: Learner, **changed: Any) -> TorchEngine:
    engine = TorchEngine(copy(learner, **changed), EOS)
    engine.update(learner.full_weights(), 1)
    return engine


def gate_of(learner: Learner, engine: Any) -> Gate:
    return Gate(learner, engine, RLConfig(sampling=SAMPLING, micro_batch_tokens=30), [PROMPT, PROMPT[:3]])


def played(engine: Any, count: int = 6) -> Trajectories:
    made = generate(engine, [Request(PROMPT, seed) for seed in range(count)], SAMPLING)
    return table(made, PROMPT)


def table(made: list[Completion], prompt: list[int]) -> Trajectories:
    before, count = [len(prompt)] * len(made), len(made)

    def flat(of: Callable[[Completion], Any], filling: float) -> np.ndarray:
        return np.concatenate([part for one in made for part in (np.full(len(prompt), filling), of(one))])

    return Trajectories(
        tokens=np.concatenate([np.array([*prompt, *one.tokens], np.int32) for one in made]),
        mask=flat(lambda one: np.ones(len(one.tokens)), 0).astype(np.bool_),
        logprobs=flat(lambda one: one.logprobs, 0).astype(np.float32),
        versions=flat(lambda one: one.versions, -1).astype(np.int32),
        offsets=np.cumsum([0, *(len(prompt) + len(one.tokens) for one in made)]),
        prompt_lengths=np.array(before, np.int32),
        rewards=np.zeros(count, np.float32),
        terms=np.zeros((count, 1), np.float32),
        finished=np.ones(count, np.bool_),
        limits=np.full(count, 10, np.int32),
        graded=np.ones(count, np.bool_),
        groups=np.zeros(count, np.int32),
        seeds=np.arange(count),
        prompt_ids=("row",) * count,
    )


def check_rollouts(gate: Gate, rollouts: Trajectories, step: int, version: int) -> dict[str, float]:
    compared = gate.compare(rollouts, step, version)
    if not compared.passes:
        gate.refuse(compared, version, f"rollouts of step {step}")
    return metrics_of([compared])


def verdict(check: Callable[[], Any]) -> str:
    with pytest.raises(ParityError) as found:
        check()
    return str(found.value)


def test_an_engine_with_the_policys_weights_passes(learner: Learner) -> None:
    for engine in (engine_of(learner), TorchEngine(learner.policy.model, EOS)):
        engine.update(None, 1)
        gate = gate_of(learner, engine)
        gate.check_generation(1)
        metrics = check_rollouts(gate, played(engine), 3, 1)
        assert 0 < metrics["parity_mean"] < metrics["parity"] < FP32.largest / 4


def add(model: Any, name: str, amount: float) -> None:
    model.get_parameter(name).data.reshape(-1)[3] += amount


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.layers.1.input_layernorm.weight", "layer norm"),
        ("model.layers.0.self_attn.q_proj.weight", "attention"),
        ("model.layers.1.mlp.down_proj.weight", "mlp"),
        ("model.embed_tokens.weight", "embedding"),
        ("model.norm.weight", "final norm"),
    ],
)
def test_a_weight_that_was_changed_is_named(learner: Learner, name: str, part: str) -> None:
    engine = engine_of(learner)
    add(engine.model, name, 0.5)
    said = verdict(lambda: gate_of(learner, engine).check_generation(1))
    assert f"They part in: {part}." in said
    assert f"1 of 24 differ; {name} by 5.0e-01" in said
    assert name.removesuffix(".weight") in said.split("modules")[1].split("\n")[0]


def test_a_head_that_was_tied_and_stayed_old_is_named(learner: Learner) -> None:
    engine = engine_of(learner)
    engine.model.lm_head.weight = torch.nn.Parameter(engine.model.lm_head.weight.clone(), requires_grad=False)
    add(engine.model, "lm_head.weight", 0.5)
    said = verdict(lambda: gate_of(learner, engine).check_generation(1))
    assert "They part in: head. Where head and embedding are tied on one side only" in said
    assert "differ; lm_head.weight by 5.0e-01" in said


@pytest.mark.parametrize(
    ("changed", "part", "module"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}, "rope", "rotary_emb"),
        ({"rms_norm_eps": 0.5}, "layer norm", "model.layers.0.input_layernorm"),
        ({"hidden_act": "gelu"}, "mlp", "model.layers.0.mlp.act_fn"),
    ],
)
def test_a_config_that_differs_is_found_by_the_first_module_that_parts(
    learner: Learner, changed: dict[str, Any], part: str, module: str
) -> None:
    engine = engine_of(learner, **changed)
    said = verdict(lambda: check_rollouts(gate_of(learner, engine), played(engine), 1, 1))
    assert f"They part in: {part}." in said and "0 of 24 differ" in said
    assert f"{module} is the first that parts" in said


def test_an_engine_that_kept_old_weights_is_told_from_one_with_a_broken_weight(learner: Learner) -> None:
    engine = engine_of(learner)
    gate = gate_of(learner, engine)
    gate.check_generation(1)
    with torch.no_grad():
        for weight in learner.policy.parameters():
            weight += 0.01
    engine.version = 2
    said = verdict(lambda: gate.check_generation(2))
    assert "They part in: stale weights." in said and "24 of 24 differ" in said


def test_an_engine_of_another_version_stops_even_where_it_agrees(learner: Learner) -> None:
    gate = gate_of(learner, engine_of(learner))
    said = verdict(lambda: gate.check_generation(2))
    assert "They part in: stale weights." in said and "2 of the policy, 1 of the engine" in said


def test_a_cache_that_is_shifted_by_one_position_is_told_from_the_model(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DecodeContext.of
    shifted = staticmethod(lambda cache, positions, width: real(cache, positions - 1, width))
    monkeypatch.setattr(DecodeContext, "of", shifted)
    for engine in (engine_of(learner), TorchEngine(learner.policy.model, EOS)):
        engine.update(None, 1)
        said = verdict(lambda engine=engine: gate_of(learner, engine).check_generation(1))
        assert "They part in: cache." in said
        assert "2 of 3 part: all from number 2 on, none before" in said
        assert "prefill      agrees" in said and "decode       parts" in said


class Opaque:
    """An engine of which nothing but the protocol can be seen."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        if name == "model":
            raise AttributeError(name)
        return getattr(self._engine, name)


def test_an_engine_that_does_not_show_its_model_is_judged_by_its_answers(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(learner)
    add(engine.model, "model.norm.weight", 0.5)
    said = verdict(lambda: gate_of(learner, Opaque(engine)).check_generation(1))
    assert "They part in: model. The engine does not show its insides" in said
    assert said.count("the engine shows none") == 2
    whole, real = Opaque(engine_of(learner)), DecodeContext.of
    shifted = staticmethod(lambda cache, positions, width: real(cache, positions - 1, width))
    monkeypatch.setattr(DecodeContext, "of", shifted)
    assert "They part in: cache." in verdict(lambda: gate_of(learner, whole).check_generation(1))


class Other(TorchEngine):
    """Samples at another temperature than it is told."""

    def start(self, sampling: SamplingConfig, *, greedy: bool = False, noise: float = 0.0) -> None:
        super().start(sampling.model_copy(update={"temperature": 0.7}), greedy=greedy, noise=noise)


def test_another_temperature_is_found_in_the_rollouts_and_named(learner: Learner) -> None:
    engine = Other(learner.policy.model, EOS)
    engine.update(None, 1)
    gate = gate_of(learner, engine)
    gate.check_generation(1)
    said = verdict(lambda: check_rollouts(gate, played(engine), 7, 1))
    assert "on rollouts of step 7" in said
    assert "They part in: temperature." in said and "1 is set, 0.7 fits best" in said


class Exclaiming(TorchEngine):
    """Says one token for ever."""

    def step(self) -> list[tuple[int, Completion]]:
        return [(key, replace(made, tokens=[3] * 3, logprobs=self.likely())) for key, made in super().step()]

    def likely(self) -> Any:
        return np.full(3, np.nan, np.float32)


def test_an_engine_that_repeats_a_token_without_a_likelihood_stops(learner: Learner) -> None:
    """Field report E10: after a sleep and a wake an engine printed only exclamation marks."""
    engine = Exclaiming(learner.policy.model, EOS)
    engine.update(None, 1)
    said = verdict(lambda: gate_of(learner, engine).check_generation(1))
    assert "disagree by inf nats" in said and "on a known generation" in said


def test_tokens_that_are_not_the_policys_best_stop_even_where_their_likelihood_is_right(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Exclaiming(learner.policy.model, EOS)
    engine.update(None, 1)
    right = policy_logits(learner.policy, pack([(PROMPT, [3] * 3)])).log_softmax(-1)[:, 3]
    monkeypatch.setattr(engine, "likely", right.numpy)
    said = verdict(lambda: gate_of(learner, engine).check_generation(1))
    assert "the policy likes other tokens better by at most" in said


def test_a_near_tie_may_be_decided_either_way(learner: Learner) -> None:
    head = learner.policy.model.get_input_embeddings().weight
    with torch.no_grad():
        head[4:] = head[4] + 1e-7 * torch.rand_like(head[4:])
    gate = gate_of(learner, engine_of(learner))
    gate.check_generation(1)


def test_tokens_that_were_changed_after_they_were_sampled_are_found(learner: Learner) -> None:
    """Field report E4: the tokens that are trained on are those that were sampled."""
    engine = engine_of(learner)
    rollouts = played(engine)
    tokens = rollouts.tokens.copy()
    places = np.flatnonzero(rollouts.mask)
    tokens[places] = (tokens[places] - 3 + 1) % 10 + 3
    said = verdict(lambda: check_rollouts(gate_of(learner, engine), replace(rollouts, tokens=tokens), 1, 1))
    assert "They part in: tokens." in said


def test_tokens_of_another_version_are_not_compared(learner: Learner) -> None:
    """Field report H6: each token carries the version that made it, also where one sample has several."""
    engine = engine_of(learner)
    gate, rollouts = gate_of(learner, engine), played(engine)
    versions, logprobs = rollouts.versions.copy(), rollouts.logprobs.copy()
    first = [int(np.flatnonzero(rollouts.mask[a:b])[0] + a) for a, b in pairwise(rollouts.offsets)]
    versions[first], logprobs[first] = 0, -9.0
    check_rollouts(gate, replace(rollouts, versions=versions, logprobs=logprobs), 1, 1)
    verdict(lambda: check_rollouts(gate, replace(rollouts, logprobs=logprobs), 1, 1))
    none = check_rollouts(gate, replace(rollouts, versions=np.zeros_like(versions), logprobs=logprobs), 1, 1)
    assert none == {"parity": 0, "parity_mean": 0}


def test_no_pass_over_compared_samples_is_larger_than_a_micro_batch(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, passes = engine_of(learner), list[int]()
    rollouts, real = played(engine), type(learner.policy).forward

    def forward(self: Any, packed: Any, **options: Any) -> Any:
        passes.append(int(packed.lengths.sum()))
        return real(self, packed, **options)

    monkeypatch.setattr(type(learner.policy), "forward", forward)
    check_rollouts(gate_of(learner, engine), rollouts, 1, 1)
    assert len(passes) > 1 and max(passes) <= 30


def test_the_compared_samples_lie_apart_and_change_with_the_step() -> None:
    assert spread(16, 4, 0) == [0, 4, 8, 12] and spread(16, 4, 1) == [1, 5, 9, 13] and spread(16, 4, 5) == [1, 5, 9, 13]
    assert spread(2, 4, 1) == [0, 1] and spread(0, 4, 1) == []
    assert {place for step in range(64) for place in spread(256, 4, step)} == set(range(256))


def test_in_16_bits_one_token_may_be_far_off_but_not_most_of_them() -> None:
    for healthy in ([1.0], [0.9, 0.05, 0.04], [0.3] * 3, [0.08] * 64):
        assert not HALF.exceeded(np.array(healthy))
    for broken in ([1.1], [0.9] * 2, [0.9] * 3, [0.2] * 24, [0.12] * 64, [np.inf]):
        assert HALF.exceeded(np.array(broken))
    assert FP32.exceeded(np.array([2e-4])) and not FP32.exceeded(np.full(99, 9e-5)) and not HALF.exceeded(np.zeros(0))


def test_differences_count_what_is_no_number_and_places_are_told_in_words() -> None:
    apart = differences(np.array([-1, np.nan, -2], np.float32), np.array([-1, -1, -2.5], np.float32))
    assert apart.tolist() == [0, np.inf, 0.5]
    assert FP32.exceeded(apart) and not FP32.exceeded(apart[:1]) and not FP32.exceeded(np.zeros(0))
    words = {(1, 1, 1): "all of them", (0, 1, 1): "all from number 2", (1, 0, 0): "the first 1", (1, 0, 1): "scattered"}
    for places, said in words.items():
        assert said in places_in_words(np.array(places, np.bool_))
