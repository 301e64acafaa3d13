"""Supervised fine-tuning: the model learns to write the completions of the training split."""

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from checkpoints.commit import remove_torn
from checkpoints.manifest import Result, commit_manifest
from data.budget import Budget
from data.job import Job, Stopped
from data.metrics import Metrics, metric_shards, read_metrics
from data.progress import Progress
from data.tokenizer import tokenizer_digest
from stages.sft.config import StageConfig
from stages.sft.examples import Example, forward_passes, read_examples
from stages.sft.sampler import batch_rows
from stages.trainer.device import any_rank, distributed, total
from stages.trainer.export import weights_digest
from stages.trainer.folder import check_vocabulary, model_tokenizer
from stages.trainer.learner import Learner
from stages.trainer.policy import Policy, load_policy


def run(config: StageConfig, inputs: dict[str, Result], folder: Path, job: Job) -> None:
    """Train from where `folder` stands to the last step; the result is `folder`/model and its manifest."""
    with distributed(job), closing(Metrics(folder, job.is_first)) as metrics:
        if job.is_first:
            remove_torn(folder)
        dist.barrier()
        _train(config, inputs["synth"], folder, job, metrics)


def _train(config: StageConfig, synth: Result, folder: Path, job: Job, metrics: Metrics) -> None:
    sft = config.sft
    policy = load_policy(config.model, config.seed)
    tokenizer = model_tokenizer(config.model)
    check_vocabulary(policy.model, tokenizer)
    context = min(sft.max_tokens, getattr(policy.model.config, "max_position_embeddings", sft.max_tokens))
    examples = read_examples(synth.folder, "train", tokenizer, context)
    held_out = read_examples(synth.folder, "validation", tokenizer, context) if synth.paths("validation/") else []

    learner = Learner(
        policy, sft.optimizer, sft.learning_rate, sft.steps, job, sft.activation_checkpointing, sft.checkpoint.keep
    )
    first, state = learner.resume(folder / "checkpoints") or (0, {"cursor": 0, "tokens": 0, "seconds": 0.0})
    metrics.resume(first)
    progress = Progress(folder, sft.steps, "steps", done=first, first=first)
    budget = Budget(job, folder, "sft")

    for step in budget.measured(range(first + 1, sft.steps + 1)):
        started = time.monotonic()
        rows = batch_rows(config.seed, len(examples), state["cursor"], sft.batch_sequences)
        batch = [examples[row] for row in rows]
        rate = learner.learning_rate
        loss = _accumulate(learner, batch, job, sft.micro_batch_tokens)
        norm = learner.step()
        tokens, seconds = sum(example.num_tokens for example in batch), time.monotonic() - started
        state = _advanced(state, len(batch), tokens, seconds)
        values = {"loss": loss, "learning_rate": rate, "gradient_norm": norm, "tokens": tokens}
        values["tokens_per_second"] = tokens / seconds
        if held_out and (step % sft.validate_every_steps == 0 or step == sft.steps):
            values["validation_loss"] = _validate(policy, held_out, job, sft.micro_batch_tokens)
        metrics.log(step, **values)
        if job.is_first:
            progress.update(step, f"loss {loss:.4f}")

        stop = any_rank(budget.must_stop())
        if stop or step == sft.steps or step % sft.checkpoint.every_steps == 0:
            with budget.save(step):
                metrics.commit(step)
                learner.save(folder / "checkpoints", step, state)
            stop = stop or any_rank(budget.must_stop())
        if stop:
            raise Stopped(f"sft: {budget.why()}, committed step {step} of {sft.steps}")

    files = learner.export(tokenizer, folder / "model")
    if job.is_first:
        commit_manifest(
            folder,
            [*files, *metric_shards(folder)],
            {**_last_losses(folder), "steps": sft.steps, "tokens": state["tokens"], "seconds": state["seconds"]},
            tokenizer_digest=tokenizer_digest(tokenizer),
            weights_digest=weights_digest(folder / "model"),
        )


def _accumulate(learner: Learner, batch: list[Example], job: Job, max_tokens: int) -> float:
    """Add up the gradient of the batch's loss over all ranks; return the loss, the mean over completion tokens."""
    count = sum(len(example.completion) for example in batch)
    sum_here = 0.0
    for packed in forward_passes(batch, job.rank, job.world_size, max_tokens):
        loss = -learner.policy(packed).logprobs.sum() / count
        learner.accumulate(loss)
        sum_here += loss.item()
    return total(sum_here)[0]


@torch.no_grad()
def _validate(policy: Policy, examples: list[Example], job: Job, max_tokens: int) -> float:
    """The same loss on the validation split."""
    passes = forward_passes(examples, job.rank, job.world_size, max_tokens)
    sum_here = sum(policy(packed).logprobs.sum().item() for packed in passes)
    return -total(sum_here)[0] / sum(len(example.completion) for example in examples)


def _advanced(state: dict[str, Any], samples: int, tokens: int, seconds: float) -> dict[str, Any]:
    """What a checkpoint keeps beside the tensors: samples taken, tokens trained and seconds trained so far."""
    return {
        "cursor": state["cursor"] + samples,
        "tokens": state["tokens"] + tokens,
        "seconds": state["seconds"] + seconds,
    }


def _last_losses(folder: Path) -> dict[str, float | None]:
    """The last of each loss that was logged; None for a run without a validation split."""
    table = read_metrics(folder)
    losses: dict[str, float | None] = {}
    for name in ("loss", "validation_loss"):
        found = table[name].drop_null() if name in table.column_names else []
        losses[name] = found[-1].as_py() if len(found) else None
    return losses
