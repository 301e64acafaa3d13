"""The table of actors, from the files that coordinator and actors leave: it asks no process."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from slurm.actors.arrays import folder_of_member
from slurm.actors.crew import none_left
from slurm.inside.place import somewhere
from slurm.verdict import Verdict, write_verdict
from workflow.actors import actors_table

MEMBER = {
    **{"role": "actor", "node": "mx1", "supernode": "s0", "since": 1.0, "device": None, "delay": 0.0, "version": 3},
    **{"slots": 8, "in_flight": 4, "held": 2, "tokens_per_second": 100.0, "episodes_per_second": 2.0},
    **{"utilisation": 0.5, "relay": False, "trouble": "", "gone": None, "why": ""},
}


def shown(attempt: Path, members: list[dict[str, Any]], gone: list[dict[str, Any]], **more: Any) -> list[str]:
    table = {"members": [MEMBER | member for member in members], "gone": [MEMBER | member for member in gone], **more}
    (attempt / "actors.json").write_text(json.dumps(table))
    console = Console(width=200, record=True)
    console.print(actors_table(attempt))
    return [line.strip() for line in console.export_text().splitlines() if line.startswith(" 12") or "12_" in line]


def fails(attempt: Path, member: str, message: str) -> None:
    folder = folder_of_member(attempt, member)
    folder.mkdir(parents=True)
    write_verdict(folder, Verdict.of("error", message, somewhere({})))


def test_an_evaluator_that_failed_is_one_line_which_says_why(tmp_path):
    fails(tmp_path, "12_2.0", "RuntimeError: no memory")
    evaluator = {"name": "12_2.0", "job": "12_2", "role": "evaluator", "gone": time.time(), "why": "silent for 30 s"}
    (line,) = shown(tmp_path, [], [evaluator])
    assert "evaluator" in line and line.endswith("RuntimeError: no memory")


def test_only_the_last_start_of_a_task_has_failed_of_what_it_said(tmp_path):
    fails(tmp_path, "12_0.0", "RuntimeError: no memory")
    first = {"name": "12_0.0", "job": "12_0", "gone": 5.0, "why": "told to stop"}
    second = {"name": "12_0.0+1", "job": "12_0", "since": 6.0, "gone": 9.0, "why": "silent for 30 s"}
    lines = shown(tmp_path, [{"name": "12_1.0", "job": "12_1"}], [first, second])
    assert [line.rsplit(": ", 1)[-1] for line in lines[1:]] == ["told to stop", "no memory"]
    assert lines[0].endswith("plays") and "4/8" in lines[0]
    assert not any("4/8" in line for line in lines[1:]), "what it played, others have now"


def test_the_evaluator_s_line_has_its_last_score(tmp_path):
    members = [{"name": "12_1.0", "job": "12_1"}, {"name": "12_2.0", "job": "12_2", "role": "evaluator"}]
    found = [{"version": version, "prompts": 128, "success": success} for version, success in ((5, 0.5), (10, 0.625))]
    actor, evaluator = shown(tmp_path, members, [], scores=found)
    assert actor.endswith("plays") and evaluator.endswith("scores; version 10: 62.5% of 128 prompts")


def test_nobody_is_said_to_play_when_the_table_is_kept_up_to_date_no_more(tmp_path, monkeypatch):
    members = [{"name": "12_1.0", "job": "12_1"}]
    assert shown(tmp_path, members, [])[0].endswith("plays")
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    (line,) = shown(tmp_path, members, [])
    assert "last heard of at" in line and "4/8" not in line


def test_positions_that_were_set_aside_are_counted_and_the_last_ones_named_with_what_went_wrong(tmp_path):
    reasons = {str(position): f"tried 4 times; the last time failed: error {position}" for position in range(9)}
    table = {"members": [], "gone": [MEMBER | {"name": "12_1.0", "job": "12_1"}]}
    (tmp_path / "actors.json").write_text(json.dumps(table | {"positions_set_aside": 12, "reasons": reasons}))
    console = Console(width=200, record=True)
    console.print(actors_table(tmp_path))
    text = console.export_text()
    assert "positions set aside: 12" in text and "position 5:" not in text
    assert "position 8: tried 4 times; the last time failed: error 8" in text


@pytest.mark.parametrize(("failed", "hopeless"), [(2, True), (1, False)])
def test_a_run_is_given_up_when_all_actors_that_were_asked_for_failed_and_not_when_one_was_killed(
    tmp_path, failed, hopeless
):
    array = {"number": 1, "actors": 2, "evaluator": False, "executor": "local", "name": "n", "host": "elsewhere"}
    array |= {"submitted": time.time() - 5, "start": "7+0", "job_id": "local", "over": False}
    (tmp_path / "actors").mkdir()
    (tmp_path / "actors/arrays.json").write_text(json.dumps({"arrays": [array]}))
    for number in range(failed):
        fails(tmp_path, f"{number}.0", "ValueError: no engine")
    said, all_failed = none_left(tmp_path)
    assert all_failed is hopeless and said.endswith("0: ValueError: no engine")
    assert hopeless == ("qianka actors add" not in said)
