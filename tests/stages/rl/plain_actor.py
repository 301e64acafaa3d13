"""The simplest actor there can be: one prompt after another, through the real engine, player, store and coordinator."""

import os
import sys
import time
from pathlib import Path

import torch

from data.job import Job
from data.shards import read_split
from data.tokenizer import load_tokenizer
from stages.environments.registry import make
from stages.rl.config import StageConfig
from stages.rl.coordinator.client import Membership
from stages.rl.messages import Join, Rates
from stages.rl.prompts import row_at
from stages.rl.rollouts import Player, Task
from stages.rl.store.client import Store
from stages.rl.weights.fetch import Weights
from stages.rollout.torch.engine import TorchEngine
from stages.trainer.policy import load_policy

torch.set_num_threads(1)
text, synth, sft, folder, name = sys.argv[1:]
config, folder = StageConfig.model_validate_json(text), Path(folder)
tokenizer = load_tokenizer(Path(sft) / "model")
policy = load_policy(Path(sft) / "model", 0)
engine = TorchEngine(
    policy.model,
    tokenizer.eos_token_id,
    tokenizer.all_special_ids,
    tokenizer=tokenizer,
    memory_share=config.engine.memory_share,
)
engine.version = -1
train = read_split(Path(synth), "train")
player = Player(config, engine, tokenizer, make(config.environment), Job())
endpoints = folder / "endpoints"
member = Membership(endpoints / "coordinator.json", Join(member=name, node="localhost", samples_at_once=2))
weights, store = Weights(endpoints / "weights.json", name), Store(endpoints)
parent = os.getppid()
have = -1
while not member.leave and os.getppid() == parent:
    weights.want(member.source)
    new = weights.hand_to(engine)
    have = new.version if new else have
    leases = member.take(1) if have >= 0 else []
    for lease in leases:
        row = train.slice(row_at(config.seed, lease.position, len(train)), 1).to_pylist()[0]
        began = time.monotonic()
        played = player.play(1000 * lease.position + lease.attempt, [Task(0, row)])
        store.put(lease, played, True, name)
        member.ended(lease.id, "stored")
        took = time.monotonic() - began
        member.report(
            Rates(
                seconds=took,
                tokens=int(played.mask.sum()),
                episodes=len(played),
                busy=took,
                version=engine.version,
                slots=8,
            )
        )
    if not leases:
        member.wait(0.2)
member.close("told to")
