"""Policies are evaluated on the same episodes that they were trained on, turn by turn."""

import pyarrow as pa

from data.tokenizer import character_tokenizer
from stages.environments.config import GuessConfig
from stages.environments.guess import HIGHER, LOWER, UNREADABLE, guess
from stages.environments.registry import make
from stages.evaluate.complete import complete
from stages.evaluate.graded import SCHEMA
from stages.evaluate.suites import Case, Suite
from stages.rollout.config import SamplingConfig
from stages.rollout.torch.engine import TorchEngine
from stages.trainer.config import ArchitectureConfig, ModelConfig
from stages.trainer.policy import load_policy

ALPHABET = "0123456789-: HIGERLOWNUMB?"


def test_an_episode_of_several_turns_is_played_graded_and_written_for_a_person_to_read() -> None:
    shape = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32}
    architecture = ArchitectureConfig(**shape, max_positions=96, alphabet=ALPHABET)
    tokenizer, model = character_tokenizer(ALPHABET), load_policy(ModelConfig(architecture=architecture), 3).model
    environment, engine = make(GuessConfig(numbers=3, turns=3)), TorchEngine(model, 2, tokenizer.all_special_ids)
    tasks = [{**environment.reset(seed=seed)[1], "id": f"{seed:032d}"} for seed in range(24)]
    cases = tuple(Case(task, task["prompt"], seed) for seed, task in enumerate(tasks))
    ended: list[int] = []
    sampling = SamplingConfig(max_new_tokens=26, slots=8)
    suite = Suite("sampled", cases, slots=8, greedy=False)
    rows = complete(engine, tokenizer, environment, sampling, suite, cases, ended.append)
    assert ended[-1] == 24 and pa.Table.from_pylist(rows, schema=SCHEMA).num_rows == 24
    assert [row["id"] for row in rows] == [case.task["id"] for case in cases]
    seen = [row["completion"].split("\n") for row in rows]
    assert max(len(lines) for lines in seen) == 5 and {len(lines) for lines in seen} <= {1, 3, 5}
    for row, task, lines in zip(rows, tasks, seen, strict=True):
        for said, answered in zip(lines[0::2], lines[1::2], strict=False):
            number, hidden = guess(said), int(task["answer"])
            word = UNREADABLE if number is None else HIGHER if number < hidden else LOWER
            assert answered.startswith(f"{word} ") and answered.endswith(":")
        found = row["finished"] and guess(lines[-1]) == int(task["answer"])
        assert row["reward"] == float(found) and row["grader_error"] is None
