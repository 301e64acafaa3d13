import json

import pytest

from checkpoints.manifest import Result
from slurm import fingerprint
from slurm.record import read_record, write_record
from workflow import plan as plans
from workflow.config import INPUTS, load
from workflow.paths import RunPaths
from workflow.plan import make_plan, stale


def reasons(*arguments: str) -> dict[str, tuple[str, ...]]:
    """Why each stage would run; those that would not are left out."""
    return {plan.stage: plan.reasons for plan in make_plan(load(list(arguments))) if plan.reasons}


@pytest.fixture
def finished(config, finish):
    finish(["mine.yaml"])


def test_a_new_run_has_everything_to_do(config):
    assert reasons("mine.yaml") == dict.fromkeys(INPUTS, ("there is no result yet",))


def test_a_finished_run_has_nothing_to_do(finished):
    assert reasons("mine.yaml") == {}


def test_a_changed_rl_value_runs_rl_and_the_evaluation_alone_and_is_named(finished):
    assert reasons("mine.yaml", "rl.learning_rate=3e-4") == {
        "rl": ("config: rl.learning_rate 0.0002 -> 0.0003",),
        "evaluate": ("input: rl runs before it",),
    }


def test_a_changed_seed_runs_everything(finished):
    assert list(reasons("mine.yaml", "seed=4")) == list(INPUTS)


def test_settings_of_the_cluster_run_nothing(finished):
    assert reasons("mine.yaml", "slurm.rl.minutes=9", "slurm.signal_seconds=30") == {}


def test_a_value_of_the_data_runs_what_is_made_of_it(finished):
    found = reasons("mine.yaml", "synth.num_tasks=10")
    assert found["synth"] == ("config: synth.num_tasks 30000 -> 10",)
    assert found["rl"] == ("input: synth runs before it", "input: sft runs before it")


def test_changed_code_is_named_by_file(finished, monkeypatch):
    files = fingerprint.code_files("rl")
    changed = {**files, "stages/trainer/learner.py": "new"}
    monkeypatch.setattr(plans, "code_files", lambda stage: changed if stage == "rl" else fingerprint.code_files(stage))
    monkeypatch.setattr(
        plans, "code_digest", lambda stage: "other" if stage == "rl" else fingerprint.code_digest(stage)
    )
    found = reasons("mine.yaml")
    assert list(found) == ["rl", "evaluate"]
    assert found["rl"][0].startswith("code: ")
    assert found["rl"][0].endswith(" in stages/trainer/learner.py")


def test_a_changed_file_of_the_user_is_noticed_by_its_content(here, finish):
    (here / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    (here / "rows.yaml").write_text("environment: {name: rows, path: rows.jsonl}\nslurm: {executor: local}\n")
    finish(["rows.yaml"])
    (here / "rows.jsonl").touch()
    assert reasons("rows.yaml") == {}
    (here / "rows.jsonl").write_text('{"prompt": "a", "answer": "c"}\n')
    assert reasons("rows.yaml")["synth"] == ("file: environment.path has another content",)


def test_an_input_that_was_made_again_alone_is_noticed(finished, finish):
    finish(["mine.yaml"], "sft")
    assert reasons("mine.yaml") == {
        "rl": ("input: the result of sft is another one now",),
        "evaluate": ("input: the result of sft is another one now", "input: rl runs before it"),
    }


def test_a_missing_dashboard_is_made_again(finished):
    RunPaths("mine").dashboard.unlink()
    assert reasons("mine.yaml") == {"evaluate": ("runs/mine/dashboard.html is missing",)}


def test_an_interrupted_attempt_is_told_with_its_progress(finished):
    paths = RunPaths("mine")
    folder = paths.stage("rl")
    record = read_record(folder)
    paths.manifest("rl").unlink()
    (folder / record.attempt / "manifest.json").unlink()
    (folder / record.attempt / "progress.json").write_text(json.dumps({"done": 2, "total": 4, "unit": "steps"}))
    write_record(folder, record.model_copy(update={"accepted": False, "job_id": "999999"}))
    assert reasons("mine.yaml")["rl"] == (f"attempt {record.attempt} was interrupted at 2/4 steps",)


def test_only_results_that_are_out_of_date_are_forced(finished):
    run = load(["mine.yaml", "rl.steps=9"])
    assert list(stale(run)) == ["rl", "evaluate"]
    RunPaths("mine").manifest("evaluate").unlink()
    assert stale(run) == {"rl": ("config: rl.steps 4 -> 9",)}


def test_a_result_with_a_missing_file_is_made_again(finished):
    manifest = Result(RunPaths("mine").manifest("evaluate"))
    (manifest.folder / "report.json").unlink()
    (reason,) = reasons("mine.yaml")["evaluate"]
    assert reason.startswith("its result is damaged: ")
