from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from data.job import Job
from data.packing import pack
from data.tokenizer import character_tokenizer
from stages.trainer.config import ArchitectureConfig, ModelConfig, OptimizerConfig
from stages.trainer.device import distributed, total
from stages.trainer.learner import Learner
from stages.trainer.policy import load_policy
from stages.trainer.schedule import schedule

Sequences = list[tuple[list[int], list[int]]]


def make_learner(model: ModelConfig, job: Job, **changed: Any) -> Learner:
    policy = load_policy(model, 1, value_head=changed.pop("value_head", True))
    return Learner(policy, OptimizerConfig(warmup_steps=2), 1e-2, 12, job, **changed)


def train(learner: Learner, job: Job, sequences: Sequences, steps: range) -> list[float]:
    """Losses of the steps: log-probabilities and values, each rank on its part of the sequences."""
    count = sum(len(completion) for _, completion in sequences)
    losses = []
    for _ in steps:
        outputs = learner.policy(pack(sequences[job.rank :: job.world_size]), values=True)
        loss = (((outputs.values - 1) ** 2).sum() - outputs.logprobs.sum()) / count
        learner.accumulate(loss)
        learner.step()
        losses += total(loss.item())
    return losses


def train_on_ranks(
    job: Job, model: ModelConfig, sequences: Sequences, folder: Path, steps: range, changed: dict[str, Any]
) -> list[float]:
    """Resume from `folder`, train the steps, look at a loss without a backward pass, save."""
    with distributed(job):
        learner = make_learner(model, job, **changed)
        resumed = learner.resume(folder)
        assert resumed == ((steps.start, {"cursor": steps.start}) if steps.start else None)
        losses = train(learner, job, sequences, steps)
        with torch.no_grad():
            learner.policy(pack(sequences))
        learner.save(folder, steps.stop, {"cursor": steps.stop})
    return losses


def test_warm_up_then_cosine_to_the_final_share() -> None:
    config = OptimizerConfig(warmup_steps=4, final_share=0.1)
    shares = [schedule(config, step, 20) for step in range(20)]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[-1] == pytest.approx(0.1)
    assert all(later < earlier for earlier, later in pairwise(shares[3:]))
    assert schedule(config, 11, 20) == pytest.approx(0.55)


def test_constant_after_warm_up() -> None:
    config = OptimizerConfig(warmup_steps=0, decay="constant")
    assert [schedule(config, step, 3) for step in range(3)] == [1.0, 1.0, 1.0]


def test_micro_batches_add_up_to_the_whole_batch(tiny: ModelConfig, sequences: Sequences, one_rank: Job) -> None:
    whole, parts = make_learner(tiny, one_rank), make_learner(tiny, one_rank)
    count = sum(len(completion) for _, completion in sequences)
    whole.accumulate(-whole.policy(pack(sequences)).logprobs.sum() / count)
    for part in (sequences[:3], sequences[3:4], [], sequences[4:]):
        parts.accumulate(-parts.policy(pack(part)).logprobs.sum() / count)
    gradients = {name: parameter.grad for name, parameter in parts.policy.model.named_parameters()}
    for name, parameter in whole.policy.model.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, atol=1e-6), name
    assert parts.step() == pytest.approx(whole.step(), rel=1e-5)


def test_the_gradient_is_clipped_and_its_norm_returned(tiny: ModelConfig, sequences: Sequences, one_rank: Job) -> None:
    learner = make_learner(tiny, one_rank)
    learner.accumulate(-1000 * learner.policy(pack(sequences)).logprobs.sum())
    before = torch.cat([p.detach().flatten() for p in learner.policy.parameters()])
    rate = learner.learning_rate
    assert learner.step() > 1000
    moved = torch.cat([p.detach().flatten() for p in learner.policy.parameters()]) - before
    assert moved.abs().max() <= rate * 1.1
    assert all(parameter.grad is None for parameter in learner.policy.parameters())


def test_a_gradient_that_is_not_finite_moves_no_weight(tiny: ModelConfig, sequences: Sequences, one_rank: Job) -> None:
    learner = make_learner(tiny, one_rank)
    before = [parameter.detach().clone() for parameter in learner.policy.parameters()]
    learner.accumulate(learner.policy(pack(sequences)).logprobs.sum() * float("nan"))
    with pytest.raises(ArithmeticError, match="nan in optimizer step 1"):
        learner.step()
    assert all(torch.equal(*pair) for pair in zip(before, learner.policy.parameters(), strict=True))


def test_norms_and_biases_do_not_decay(tiny: ModelConfig, one_rank: Job) -> None:
    groups = make_learner(tiny, one_rank).optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0]
    assert {parameter.dim() for parameter in groups[1]["params"]} == {1}


def test_a_resumed_learner_goes_on_bit_for_bit(
    tiny: ModelConfig, sequences: Sequences, one_rank: Job, tmp_path: Path
) -> None:
    undisturbed = make_learner(tiny, one_rank)
    train(undisturbed, one_rank, sequences, range(4))
    undisturbed.save(tmp_path, 4, {"cursor": 32})
    train(undisturbed, one_rank, sequences, range(4, 8))

    resumed = make_learner(tiny, one_rank)
    assert resumed.resume(tmp_path) == (4, {"cursor": 32})
    train(resumed, one_rank, sequences, range(4, 8))
    assert resumed.learning_rate == undisturbed.learning_rate
    for name, tensor in undisturbed.policy.state_dict().items():
        assert torch.equal(resumed.policy.state_dict()[name], tensor), name


def test_without_a_checkpoint_there_is_nothing_to_resume(tiny: ModelConfig, one_rank: Job, tmp_path: Path) -> None:
    assert make_learner(tiny, one_rank).resume(tmp_path / "checkpoints") is None


def test_a_checkpoint_without_the_critic_is_an_error_that_names_it(
    tiny: ModelConfig, sequences: Sequences, one_rank: Job, tmp_path: Path
) -> None:
    actor = make_learner(tiny, one_rank, value_head=False)
    actor.accumulate(-actor.policy(pack(sequences)).logprobs.mean())
    actor.step()
    actor.save(tmp_path, 1, {})
    with pytest.raises(ValueError, match=r"value_head\.bias.* is not in the checkpoint"):
        make_learner(tiny, one_rank).resume(tmp_path)


def test_activation_checkpointing_changes_no_number(tiny: ModelConfig, sequences: Sequences, one_rank: Job) -> None:
    plain, recomputed = make_learner(tiny, one_rank), make_learner(tiny, one_rank, activation_checkpointing=True)
    assert recomputed.policy.model.is_gradient_checkpointing
    expected = train(plain, one_rank, sequences, range(3))
    assert train(recomputed, one_rank, sequences, range(3)) == expected


@pytest.mark.parametrize("recompute", [False, True])
def test_two_ranks_train_like_one(
    tiny: ModelConfig, sequences: Sequences, ranks: Any, tmp_path: Path, recompute: bool
) -> None:
    changed = {"activation_checkpointing": recompute}
    [alone] = ranks(train_on_ranks, 1, tiny, sequences, tmp_path / "1", range(4), changed)
    together = ranks(train_on_ranks, 2, tiny, sequences, tmp_path / "2", range(4), changed)
    assert together[0] == together[1]
    assert together[0] == pytest.approx(alone, rel=1e-5)


def test_any_number_of_ranks_resumes_a_checkpoint(
    tiny: ModelConfig, sequences: Sequences, ranks: Any, tmp_path: Path
) -> None:
    [expected] = ranks(train_on_ranks, 1, tiny, sequences, tmp_path / "undisturbed", range(6), {})
    changing = tmp_path / "changing"
    found = ranks(train_on_ranks, 1, tiny, sequences, changing, range(2), {})[0]
    found += ranks(train_on_ranks, 2, tiny, sequences, changing, range(2, 4), {})[0]
    found += ranks(train_on_ranks, 1, tiny, sequences, changing, range(4, 6), {})[0]
    assert found == pytest.approx(expected, rel=1e-5)


def train_in_copies(
    job: Job, model: ModelConfig, sequences: Sequences, folder: Path, steps: range, shard_ranks: int | None
) -> tuple[list[float], list[float], int]:
    """Losses; norms of the gradient and of the whole weights; how many of the weights' numbers this rank holds."""
    job = replace(job, shard_ranks=shard_ranks)
    with distributed(job):
        learner = make_learner(model, job)
        assert (learner.resume(folder) is None) is (steps.start == 0)
        norms: list[float] = []
        step = learner.step
        learner.step = lambda: norms.append(step()) or norms[-1]  # type: ignore[method-assign]
        losses = train(learner, job, sequences, steps)
        learner.save(folder, steps.stop, {"cursor": steps.stop})
        norms += [float(weight.norm()) for _, weight in learner.full_weights()]
        held = sum(parameter.to_local().numel() for parameter in learner.policy.parameters())
    return losses, norms, held


def test_copies_of_the_model_train_as_one_sharded_over_all_ranks_and_share_its_checkpoints(
    tiny: ModelConfig, sequences: Sequences, ranks: Any, tmp_path: Path
) -> None:
    whole, copies = tmp_path / "whole", tmp_path / "copies"
    expected = ranks(train_in_copies, 4, tiny, sequences, whole, range(3), None)
    found = ranks(train_in_copies, 4, tiny, sequences, copies, range(3), 2)
    for (losses, norms, held), (other, other_norms, other_held) in zip(expected, found, strict=True):
        assert other == pytest.approx(losses, rel=1e-5)
        assert other_norms == pytest.approx(norms, rel=1e-5)
        assert other_held >= 1.9 * held
    expected = ranks(train_in_copies, 4, tiny, sequences, whole, range(3, 5), 2)
    found = ranks(train_in_copies, 4, tiny, sequences, copies, range(3, 5), None)
    assert found[0][0] == pytest.approx(expected[0][0], rel=1e-5)
    assert found[0][1] == pytest.approx(expected[0][1], rel=1e-5)


def test_shards_that_make_no_whole_copies_are_an_error(tiny: ModelConfig) -> None:
    with pytest.raises(ValueError, match="shard_ranks is 3, but the 4 ranks are no multiple of it"):
        make_learner(tiny, Job(world_size=4, shard_ranks=3))


def export_on_ranks(job: Job, model: ModelConfig, sequences: Sequences, folder: Path) -> list[str]:
    with distributed(job):
        learner = make_learner(model, job)
        train(learner, job, sequences, range(2))
        files = learner.export(character_tokenizer(model.architecture.alphabet), folder)
    return [path.name for path in files]


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_export_loads_in_plain_transformers_with_the_same_log_probabilities(
    tiny: ModelConfig, sequences: Sequences, ranks: Any, one_rank: Job, tmp_path: Path, world_size: int
) -> None:
    folder = tmp_path / "model"
    ranks(export_on_ranks, world_size, tiny, sequences, folder)
    learner = make_learner(tiny, one_rank)
    train(learner, one_rank, sequences, range(2))

    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert plain.config._attn_implementation == "sdpa"
    prompt, completion = sequences[2]
    logits = plain(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]
    assert torch.allclose(learner.policy(pack([(prompt, completion)])).logprobs, expected, atol=1e-4)


def test_tied_weights_are_given_once(one_rank: Job) -> None:
    learner = make_learner(ModelConfig(architecture=ArchitectureConfig(num_layers=1)), one_rank)
    names = [name for name, _ in learner.full_weights()]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert len(names) == len(set(names)) == len(dict(learner.policy.model.named_parameters()))
