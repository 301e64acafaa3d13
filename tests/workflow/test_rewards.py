"""Reward terms in a config: where the user's own file is looked for, what is refused, and what a change reruns."""

import json
from pathlib import Path
from typing import Any

import pytest

from workflow.config import RunConfig, load
from workflow.preflight import check_config
from workflow.request import make_request, triggers

OWN = """
from stages.environments.rewards import Episode


def brevity(episode: Episode, *, words: int = 3) -> float:
    return -float(len(episode.completion.split()) > words)


def bare(episode: Episode, *, words: int) -> float:
    return 0.0
"""
CONFIG = """
slurm: {executor: local}
rl:
  rewards:
    - {term: verifier}
    - {term: my_rewards.py:brevity, weight: 0.1, values: {words: 2}}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config in a folder that is not the one where the user stands."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/my_rewards.py").write_text(OWN)
    (tmp_path / "configs/mine.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "configs/mine.yaml"


def rewards(run: RunConfig) -> list[dict[str, Any]]:
    return run.stage_json("rl")["rl"]["rewards"]


def test_a_file_beside_the_config_is_absolute_in_the_resolved_one(file: Path) -> None:
    run = load([str(file)])
    own = f"{file.parent / 'my_rewards.py'}:brevity"
    assert rewards(run)[1] == {"term": own, "weight": 0.1, "values": {"words": 2}}
    check_config(run)
    resolved = file.parent / "config.json"
    resolved.write_text(run.model_dump_json())
    assert rewards(load([str(resolved)])) == rewards(run)


def test_a_file_on_the_command_line_is_looked_for_where_the_user_stands(file: Path) -> None:
    run = load([str(file), "rl.rewards=[{term: configs/my_rewards.py:brevity}]"])
    assert rewards(run)[0]["term"] == f"{file.parent / 'my_rewards.py'}:brevity"
    check_config(run)


def test_a_change_of_the_file_makes_rl_run_again_and_nothing_else(file: Path) -> None:
    run = load([str(file)])
    before = {stage: (triggers(run, stage), make_request(run, stage).files) for stage in ("sft", "rl", "evaluate")}
    (file.parent / "my_rewards.py").write_text(OWN.replace("3", "4"))
    after = {stage: (triggers(run, stage), make_request(run, stage).files) for stage in ("sft", "rl", "evaluate")}
    assert before["rl"][0] != after["rl"][0] and before["rl"][1] != after["rl"][1]
    assert before["sft"] == after["sft"] and before["evaluate"] == after["evaluate"]


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ("[{term: verifer}]", r"rl.rewards\[0\]: there is no term 'verifer'; did you mean verifier"),
        ("[{term: verifier}, {term: configs/my_rewards.py:bare}]", r"rl.rewards\[1\]: bare needs the value 'words'"),
        ("[{term: my_reward.py:brevity}]", r"my_reward.py: No such file"),
        ("[{term: configs/my_rewards.py:brevty}]", "has no function 'brevty'; did you mean brevity"),
        ("[]", "rl.rewards is empty"),
    ],
)
def test_a_wrong_term_is_found_before_a_node_is_asked_for(file: Path, rewards: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_config(load([str(file), f"rl.rewards={rewards}"]))


def test_a_wrong_key_of_a_term_lists_the_right_ones(file: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown key `rl.rewards.0.wieght`; did you mean `weight`\? .* term, values"):
        load([str(file), "rl.rewards=[{term: verifier, wieght: 2}]"])
    file.write_text(json.dumps({"rl": {"rewards": ["verifier"]}}))
    with pytest.raises(ValueError, match=r"mine.yaml.*`rl.rewards.0` is 'verifier', but it is a section"):
        load([str(file)])
