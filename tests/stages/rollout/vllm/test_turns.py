"""Episodes of several turns through vLLM: what is learned from them is what the policy says of it."""

import random
from collections.abc import Callable

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from data.packing import pack_masked
from stages.environments.base import Answer, BaseEnvironment, Task
from stages.rl.rollouts import Rewarded, tabulate
from stages.rollout.config import SamplingConfig
from stages.rollout.episodes import play_episodes
from stages.rollout.flight import Start
from stages.rollout.vllm.engine import VllmEngine
from stages.trainer import attention
from stages.trainer.policy import Policy

PROMPT = [1, 5, 6, 7] * 10
STOPS = (5, 9, 12)


class Talk(BaseEnvironment):
    """Says `12;` after the first turn, and is done with the second."""

    name = "talk"
    perturbations = ()
    cpu_seconds = None
    max_turns = 2

    def draw(self, rng: random.Random, harder: bool) -> Task:
        return {"prompt": "?", "answer": "", "trace": "", "level": 0}

    def perturb(self, prompt: str, kind: str, rng: random.Random) -> str:
        return prompt

    def grade(self, task: Task, completion: str) -> tuple[float, bool]:
        return 0.0, True

    def answer(self, task: Task, action: str) -> Answer:
        last = self.turns_left == 1
        return Answer("" if last else "12;", 1.0, last, True)


def test_episodes_of_two_turns_agree_with_the_policy_where_it_spoke_and_only_there(
    make_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    plain = make_model(1)
    model = AutoModelForCausalLM.from_config(plain.config, attn_implementation=attention.NAME).eval()
    model.load_state_dict(plain.state_dict())
    engine = VllmEngine(model.config, tokenizer, slots=16)
    engine.update(model.named_parameters(), 3)
    task: Task = {"id": "a", "prompt": "?", "answer": "", "trace": "", "level": 0}
    starts = [Start(task, PROMPT, seed) for seed in range(24)]
    sampling = SamplingConfig(max_new_tokens=40, stop_tokens=STOPS)
    told: list[int] = []
    played = play_episodes(engine, tokenizer, Talk(), starts, sampling, on_progress=told.append)
    engine.close()
    assert told[-1] == 24 and engine.reused > 0
    table = tabulate([Rewarded(0, episode, 256, [0.0], 0.0) for episode in played], 1)
    assert (table.turns == 2).sum() > 12
    observation = [tokenizer.convert_tokens_to_ids(character) for character in "12;"]
    for index, episode in enumerate(played):
        tokens, mask = table.sequence(index)
        assert tokens[~mask].tolist() == PROMPT + (observation if len(episode.completions) == 2 else [])
    with torch.no_grad():
        said = Policy(model)(pack_masked([table.sequence(index) for index in range(len(table))])).logprobs
    apart = np.abs(table.logprobs[table.mask] - said.numpy())
    assert apart.max() < 1e-4 and (table.versions[table.mask] == 3).all()
