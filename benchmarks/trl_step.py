"""Steps of TRL's GRPOTrainer, in the environment of its own that `rl_step_vs_trl` makes. Run as a script.

`trl_step.py REPOSITORY MODEL ROWS.json SETTINGS.json` ends with JSON: CPU seconds of each step after the first.
"""

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

repository, model, rows_file, settings_file = sys.argv[1:]
sys.path.insert(0, repository)

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from stages.environments.config import ArithmeticConfig  # noqa: E402
from stages.environments.registry import make  # noqa: E402

rows = json.loads(Path(rows_file).read_text())
settings = json.loads(Path(settings_file).read_text())
torch.set_num_threads(settings["threads"])
environment = make(ArithmeticConfig())
tokenizer = AutoTokenizer.from_pretrained(model)


def reward(prompts: list[str], completion_ids: list[list[int]], row: list[str], **_: Any) -> list[float]:
    """The environment's, 0 for a completion that was cut: what Qianka's step gives."""
    rewards: list[float] = []
    for text, ids in zip(row, completion_ids, strict=True):
        environment.reset(task=json.loads(text))
        value = environment.step(tokenizer.decode(ids, skip_special_tokens=True))[1]
        rewards.append(value * (ids[-1] == tokenizer.eos_token_id))
    lengths.append(sum(map(len, completion_ids)))
    means.append(sum(rewards) / len(rewards))
    return rewards


class Clock(TrainerCallback):
    """Notes when a step, which has `minibatches` optimizer steps, has ended."""

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        """After each optimizer step."""
        if state.global_step % settings["minibatches"] == 0:
            ends.append(time.process_time())


ends: list[float] = []
lengths: list[int] = []
means: list[float] = []
samples, minibatches = settings["prompts"] * settings["samples"], settings["minibatches"]
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa"),
    processing_class=tokenizer,
    reward_funcs=reward,
    train_dataset=Dataset.from_list([{"prompt": "<bos>" + row["prompt"], "row": json.dumps(row)} for row in rows]),
    callbacks=[Clock()],
    args=GRPOConfig(
        output_dir=settings["folder"],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=settings["batch"],
        gradient_accumulation_steps=samples // minibatches // settings["batch"],
        steps_per_generation=samples // settings["batch"],
        num_generations=settings["samples"],
        num_iterations=1,
        max_completion_length=settings["most_tokens"],
        temperature=1.0,
        beta=0.0,
        loss_type="dr_grpo",
        scale_rewards="none",
        epsilon=0.2,
        epsilon_high=0.28,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        max_grad_norm=1.0,
        max_steps=settings["steps"] * minibatches,
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=settings["seed"],
    ),
)
trainer.train()
steps = [after - before for before, after in pairwise(ends)]
print(json.dumps({"seconds": steps, "tokens": lengths, "rewards": means}))
