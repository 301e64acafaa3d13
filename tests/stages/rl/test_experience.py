"""The forward passes of the experience, and what the update may leave out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data.job import Job
from data.trajectories import Trajectories
from stages.algorithms.load import load_algorithm
from stages.rl.config import RLConfig
from stages.rl.experience import make_experience
from stages.rl.update import accumulate
from stages.trainer import packed
from stages.trainer.config import ArchitectureConfig, ModelConfig, OptimizerConfig
from stages.trainer.device import distributed
from stages.trainer.learner import Learner
from stages.trainer.policy import Policy, load_policy
from stages.trainer.reference import load_reference

MODEL = ModelConfig(
    architecture=ArchitectureConfig(
        hidden_size=32, num_layers=2, num_heads=2, num_key_value_heads=1, intermediate_size=32
    )
)
RL = RLConfig.model_validate({"prompts_per_step": 4, "samples_per_prompt": 4, "micro_batch_tokens": 60})

FILE = """
minibatches: 1
experience:
  old: {operator: policy_forward}
  began: {operator: reference_forward}
  away: {operator: importance_ratio, takes: {new: old.logprobs, old: began}}
  mean: {operator: group_mean, takes: {of: reward}}
  centred: {operator: subtract_group, takes: {of: reward, group: mean}}
  advantage: {operator: over_tokens, takes: {of: centred}}
update:
  policy: {operator: policy_forward}
  ratio: {operator: importance_ratio, takes: {new: policy.logprobs, old: old.logprobs}}
  surrogate: {operator: clipped_surrogate, takes: {ratio: ratio, advantage: advantage}}
  reward_loss: {operator: MEAN, takes: {of: surrogate.loss}}
  kl: {operator: kl_k3, takes: {new: policy.logprobs, old: began}}
  kl_loss: {operator: MEAN, takes: {of: kl}}
  loss: {operator: add, takes: {base: reward_loss, other: kl_loss}, values: {weight: WEIGHT}}
metrics: {away: away, kl: kl, ratio: ratio}
"""


def algorithm(folder: Path, name: str, text: str) -> Any:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return load_algorithm(str(path))


def with_reference(folder: Path) -> Any:
    return algorithm(folder, "with_reference", FILE.replace("MEAN", "token_mean").replace("WEIGHT", "0.1"))


def played(job: Job, rewards: Any) -> Trajectories:
    """Four groups of four samples of ragged lengths, of which a rank has its share."""
    numbers = np.random.default_rng(0)
    sizes = numbers.integers(1, 9, 16)
    sequences = [numbers.integers(3, 55, 3 + size) for size in sizes]
    logprobs = [-numbers.random(3 + size) - 3 for size in sizes]
    mine = [index for index in range(16) if index // 4 % job.world_size == job.rank]
    mask = np.concatenate([np.arange(3 + sizes[index]) >= 3 for index in mine])
    return Trajectories(
        tokens=np.concatenate([sequences[index] for index in mine]).astype(np.int32),
        mask=mask,
        logprobs=np.where(mask, np.concatenate([logprobs[index] for index in mine]), 0).astype(np.float32),
        versions=np.zeros(len(mask), np.int32),
        offsets=np.concatenate([[0], np.cumsum([3 + sizes[index] for index in mine])]),
        prompt_lengths=np.full(len(mine), 3, np.int32),
        limits=np.full(len(mine), 9, np.int32),
        terms=np.array([[rewards[index]] for index in mine], np.float32),
        rewards=np.array([rewards[index] for index in mine], np.float32),
        finished=np.ones(len(mine), np.bool_),
        graded=np.ones(len(mine), np.bool_),
        groups=np.array([index // 4 for index in mine], np.int32),
        seeds=np.arange(len(mine)),
        prompt_ids=tuple(f"row-{index // 4}" for index in mine),
    )


REWARDS = [0, 1, 0, 1, *[1] * 4, 1, 1, 0, 1, *[0] * 4]


def moved(policy: Policy) -> Policy:
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(1.05)
    return policy


def gradient(learner: Learner) -> list[Tensor]:
    found = [weight.grad for weight in learner.policy.parameters()]
    learner.optimizer.zero_grad()
    return [torch.zeros(0) if grad is None else grad.clone() for grad in found]


@pytest.fixture
def one_rank() -> Any:
    job = Job()
    with distributed(job):
        yield job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    load_policy(MODEL, 1).model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_reference_is_what_the_stage_began_with_whatever_the_policy_has_become(
    one_rank: Job, folder: Path, tmp_path: Path
) -> None:
    policy, reference = moved(load_policy(folder, 0)), load_reference(folder, one_rank)
    made = make_experience(policy, with_reference(tmp_path), played(one_rank, REWARDS), RL, reference)
    alone = make_experience(load_policy(folder, 0), load_algorithm("decoupled_ppo"), played(one_rank, REWARDS), RL)
    assert torch.equal(made.quantities["began"], alone.quantities["proximal.logprobs"])
    assert not torch.allclose(made.quantities["old.logprobs"], made.quantities["began"], atol=1e-3)
    assert not any(weight.requires_grad for weight in reference.parameters())


def test_policy_and_reference_read_the_same_packed_micro_batches(
    one_rank: Job, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packings: list[int] = []
    made = packed.PackedContext.__init__
    monkeypatch.setattr(packed.PackedContext, "__init__", lambda self, *given: packings.append(1) or made(self, *given))
    policy, batch = moved(load_policy(folder, 0)), played(one_rank, REWARDS)
    reference = load_reference(folder, one_rank)
    packings.clear()
    make_experience(policy, load_algorithm("decoupled_ppo"), batch, RL)
    alone = len(packings)
    make_experience(policy, with_reference(tmp_path), batch, RL, reference)
    assert alone > 1 and len(packings) == 2 * alone


def test_a_policy_that_has_not_moved_is_its_own_reference(one_rank: Job, folder: Path, tmp_path: Path) -> None:
    policy = load_policy(folder, 0)
    passes: list[int] = []
    policy.register_forward_hook(lambda *_: passes.append(1))
    passed = make_experience(policy, with_reference(tmp_path), played(one_rank, REWARDS), RL, policy).quantities
    assert torch.equal(passed["old.logprobs"], passed["began"])
    several = len(passes)
    make_experience(policy, load_algorithm("decoupled_ppo"), played(one_rank, REWARDS), RL, policy)
    assert len(passes) == 2 * several
    only = FILE.replace("MEAN", "token_mean").replace("WEIGHT", "0.1")
    only = only.replace("  old: {operator: policy_forward}\n", "").replace("old.logprobs", "rollout_logprobs")
    made = make_experience(policy, algorithm(tmp_path, "only", only), played(one_rank, REWARDS), RL, policy)
    assert torch.equal(made.quantities["began"], passed["began"]) and len(passes) == 3 * several


def experience_on_ranks(job: Job, folder: Path, files: Path) -> tuple[dict[str, float], dict[int, list[float]]]:
    """Ranks with unequally many micro-batches: the first two groups are long, the others are not there."""
    with distributed(job):
        learner = Learner(load_policy(folder, 0), OptimizerConfig(warmup_steps=0), 1e-2, 9, job)
        reference = load_reference(folder, job)
        loaded = with_reference(files)
        for _ in range(2):
            experience = make_experience(learner.policy, loaded, played(job, REWARDS), RL, reference)
            metrics = accumulate(learner, loaded, experience, np.arange(len(experience.samples.sizes)), RL)
            assert metrics is not None
            metrics["norm"] = learner.step()
        began = experience.quantities["began"].split(experience.samples.sizes.tolist())
        by_number = dict(zip(experience.samples.numbers.tolist(), (part.tolist() for part in began), strict=True))
        return experience.metrics | metrics, by_number


def test_ranks_share_a_reference_in_shards_as_one_rank_has_it_whole(ranks: Any, folder: Path, tmp_path: Path) -> None:
    """Field report H4: all ranks agree on the number of micro-batches."""
    [(metrics, whole)] = ranks(experience_on_ranks, 1, folder, tmp_path)
    # Of three ranks one has two groups and with them more micro-batches.
    shares = ranks(experience_on_ranks, 3, folder, tmp_path)
    for found, part in shares:
        assert found == pytest.approx(metrics, rel=1e-3)
        for number, logprobs in part.items():
            assert logprobs == pytest.approx(whole[number], abs=1e-5)
    assert sorted(number for _, part in shares for number in part) == list(range(16))


@pytest.mark.parametrize("name", ["dr_grpo", "grpo", "rloo", "gspo", "cispo", "decoupled_ppo"])
def test_leaving_samples_out_changes_no_gradient(name: str, one_rank: Job, folder: Path) -> None:
    """Papers divide by all samples of a prompt and all prompts; those without an advantage only add zero."""
    learner = Learner(load_policy(folder, 0), OptimizerConfig(), 1e-3, 9, one_rank)
    skipping = load_algorithm(name)
    found: list[list[Tensor]] = []
    for loaded in (skipping, replace(skipping, skip_where_zero=None)):
        experience = make_experience(learner.policy, loaded, played(one_rank, REWARDS), RL)
        assert experience.keep.sum() == (8 if loaded.skip_where_zero else 16)
        assert accumulate(learner, loaded, experience, np.arange(16), RL) is not None
        found.append(gradient(learner))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_metrics_are_means_over_what_was_learned_from(one_rank: Job, folder: Path) -> None:
    learner, loaded = Learner(load_policy(folder, 0), OptimizerConfig(), 1e-3, 9, one_rank), load_algorithm("dr_grpo")
    batch = played(one_rank, REWARDS)
    own = make_experience(learner.policy, load_algorithm("decoupled_ppo"), batch, RL).quantities["proximal.logprobs"]
    logprobs = batch.logprobs.copy()
    logprobs[batch.mask] = own.numpy()
    experience = make_experience(learner.policy, loaded, replace(batch, logprobs=logprobs), RL)
    metrics = accumulate(learner, loaded, experience, np.arange(16), RL)
    assert metrics is not None and metrics["importance_ratio"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("mean", ["token_mean", "sample_mean"])
def test_what_would_have_taught_something_must_not_be_left_out(
    mean: str, one_rank: Job, folder: Path, tmp_path: Path
) -> None:
    policy = load_policy(folder, 0)
    text = "skip_where_zero: centred\n" + FILE.replace("MEAN", mean)
    with_kl = algorithm(tmp_path, "with_kl", text.replace("WEIGHT", "0.001"))
    with pytest.raises(ValueError, match="with_kl: skip_where_zero: where centred is zero, the loss still has a grad"):
        make_experience(policy, with_kl, played(one_rank, REWARDS), RL, policy)
    make_experience(policy, with_kl, played(one_rank, [0, 1] * 8), RL, policy)  # nothing is left out
    weightless = algorithm(tmp_path, "weightless", text.replace("WEIGHT", "0.0"))
    make_experience(policy, weightless, played(one_rank, REWARDS), RL, policy)


@pytest.mark.slow
def test_every_rank_says_so_when_only_one_has_what_must_not_be_left_out(
    world: Any, start: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One prompt with one sample: it is as good as its group, and the second rank has none."""
    text = "skip_where_zero: centred\n" + FILE.replace("MEAN", "token_mean").replace("WEIGHT", "0.1")
    algorithm(tmp_path, "with_kl", text)
    config = world.changed(algorithm=str(tmp_path / "with_kl.yaml"), prompts_per_step=1, samples_per_prompt=1)
    assert [process.wait() for process in start(config, world.attempt(), 2)] == [1, 1]
    assert capfd.readouterr().err.count("ValueError: the algorithm with_kl: skip_where_zero") == 2


@pytest.mark.parametrize("name", ["ppo", "reinforce_pp", "decoupled_ppo", "dapo"])
def test_when_no_sample_was_graded_the_experience_is_empty(name: str, one_rank: Job) -> None:
    loaded, ungraded = load_algorithm(name), replace(played(one_rank, REWARDS), graded=np.zeros(16, np.bool_))
    policy = load_policy(MODEL, 0, value_head=loaded.needs_values)
    experience = make_experience(policy, loaded, ungraded, RL, policy)
    assert len(experience.keep) == 0 and experience.metrics["tokens_trained"] == 0


def test_dynamic_sampling_drops_and_does_not_save_time(one_rank: Job, folder: Path) -> None:
    """DAPO (eq. 11): the token mean is over the samples of the prompts that were kept."""
    learner = Learner(load_policy(folder, 0), OptimizerConfig(), 1e-3, 9, one_rank)
    loaded = load_algorithm("dapo")
    found: list[list[Tensor]] = []
    experience = make_experience(learner.policy, loaded, played(one_rank, REWARDS), RL)
    for resample in (2, 0):
        changed = replace(loaded, resample=resample)
        assert accumulate(learner, changed, experience, np.arange(16), RL) is not None
        found.append(gradient(learner))
    sizes, keep = experience.samples.sizes, experience.keep
    share = sizes.sum() / sizes[keep].sum()
    for dropped, counted in zip(*found, strict=True):
        assert torch.allclose(dropped, counted * share, rtol=1e-4, atol=1e-6)
