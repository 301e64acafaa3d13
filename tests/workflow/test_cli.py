import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from data.progress import Progress
from data.warnings import Warned, write_warnings
from workflow.cli import app
from workflow.config import schema_text
from workflow.paths import RunPaths
from workflow.pipeline import cache_settings


@pytest.fixture
def qianka(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("command", [["--help"], ["status"]])
def test_the_light_commands_import_nothing_heavy_and_answer_at_once(here, command):
    code = (
        "import sys, time; start = time.process_time()\n"
        f"sys.argv = ['qianka', *{command}]\n"
        "from workflow.cli import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'vllm', 'snakemake', 'pyarrow', 'submitit'} & set(sys.modules)\n"
        "print('heavy', sorted(heavy), time.process_time() - start)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    heavy, seconds = re.search(r"heavy (\[.*\]) ([\d.]+)", done.stdout).groups()
    assert heavy == "[]", done.stdout + done.stderr
    assert float(seconds) < 2, "0.3 s on a quiet machine"


def test_the_plan_names_reasons_and_draws_the_algorithm(qianka, config, finish):
    finish(["mine.yaml"])
    result = qianka("plan", "mine.yaml", "rl.steps=9", "rl.algorithm=ppo")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["sft", "keep"] in lines
    assert ["rl", "run", "config:", "rl.algorithm", "dr_grpo", "->", "ppo"] in lines
    assert "experience  once a step" in result.output
    assert re.search(r"│ new ← policy\.logprobs", result.output)


def test_the_status_follows_a_number_back_to_the_seed(qianka, config, finish):
    finish(["mine.yaml"])
    result = qianka("status", "mine")
    lines = result.output.splitlines()
    assert any(re.search(r"evaluate.*done.*rl_greedy 0\.5", line) for line in lines)
    chain = [line.strip("└─ ").split()[0] for line in lines[lines.index("lineage") + 1 :] if "code" in line]
    assert chain == ["evaluate", "rl", "sft", "synth"]
    assert "rule engine arithmetic, seed 3" in result.output
    assert "dashboard: runs/mine/dashboard.html" in result.output


def test_a_lineage_whose_input_was_replaced_says_so(qianka, config, finish):
    finish(["mine.yaml"])
    finish(["mine.yaml"], "sft")
    assert re.search(r"sft \w{12}: replaced by \w+-2 since", qianka("status", "mine").output)


@pytest.mark.parametrize("name", ["manifest.json", "record.json"])
def test_a_damaged_stage_does_not_hide_the_others(qianka, config, finish, name):
    finish(["mine.yaml"])
    (RunPaths("mine").stage("rl") / name).write_text("{")
    result = qianka("status")
    assert result.exit_code == 0, result.output
    assert "damaged" in result.output
    assert re.search(r"sft +done", result.output)


@pytest.mark.parametrize("content", ["", "[1]", "{}"])
def test_a_damaged_config_of_a_run_is_named(qianka, config, finish, content):
    finish(["mine.yaml"])
    RunPaths("mine").config.write_text(content)
    result = qianka("plan", "mine.yaml")
    assert result.exit_code == 2
    assert "runs/mine/config.json: damaged" in result.output


def test_a_progress_file_that_a_lost_node_left_empty_is_no_progress(qianka, config, finish):
    finish(["mine.yaml"])
    for attempt in Path("runs/mine").glob("*/*-1"):
        (attempt / "progress.json").touch()
    assert qianka("status", "mine").exit_code == 0


def test_the_status_tells_what_looks_wrong_in_how_a_stage_learns_and_what_to_try(qianka, config, finish):
    finish(["mine.yaml"])
    (attempt,) = Path("runs/mine/rl").glob("*-1")
    assert "warning" not in qianka("status", "mine").output
    write_warnings(attempt, [Warned(step, "no signal", "all alike", "Try [easier] prompts.") for step in (1, 2, 3, 4)])
    lines = [line.strip() for line in qianka("status", "mine").output.splitlines() if line.startswith("warning")]
    assert lines[0] == "warning: rl has 4 warnings; the last ones are:"
    assert lines[1:] == [f"warning: rl, step {n}: no signal: all alike. Try [easier] prompts." for n in (2, 3, 4)]
    (attempt / "warnings.json").write_text("")
    assert qianka("status", "mine").exit_code == 0


def test_the_status_of_a_stage_that_is_not_done_shows_what_its_last_step_measured(qianka, config, finish):
    finish(["mine.yaml"])
    stage = RunPaths("mine").stage("rl")
    (attempt,) = stage.glob("*-1")
    for path in (stage / "manifest.json", attempt / "manifest.json"):
        path.unlink()
    Progress(attempt, 40, "steps").update(7, "reward 0.512, length 14.2")
    output = qianka("status", "mine").output
    assert "7/40 steps" in output and "reward 0.512" in output and "length 14.2" in output


def test_a_run_that_is_not_there_is_named(qianka, config, finish):
    assert "no runs in" in qianka("status").output
    finish(["mine.yaml"])
    result = qianka("status", "yours")
    assert result.exit_code == 2
    assert "there is no run 'yours'" in result.output


def test_an_unknown_stage_lists_the_stages(qianka):
    result = qianka("stage", "rll")
    assert result.exit_code == 2
    assert "error: there is no stage 'rll'; the stages are synth, sft, rl, evaluate" in result.output


def test_a_stage_without_its_inputs_says_what_to_run_first(qianka, config):
    result = qianka("stage", "sft", "mine.yaml")
    assert result.exit_code == 2
    assert "runs/mine/synth/manifest.json: no such manifest; run the stage that makes it first" in result.output


def test_the_schema_is_printed_and_checked(qianka):
    assert qianka("schema").output == schema_text()
    assert qianka("schema", "--check").exit_code == 0


def test_publishing_what_never_finished_is_refused(qianka, config):
    result = qianka("stage", "synth", "--publish", "mine.yaml")
    assert result.exit_code == 2
    assert "no finished attempt" in result.output


@pytest.mark.slow
def test_ctrl_c_of_the_whole_pipeline_ends_its_job(here, config):
    config.write_text(config.read_text() + "synth: {num_tasks: 200000, block_tasks: 200, workers: 1}\n")
    command = [sys.executable, "-P", "-m", "workflow.cli", "run", "mine.yaml", "--cores", "1"]
    with (here / "out").open("w") as out:
        run = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    while not list(here.glob("runs/mine/synth/*/progress.json")):
        assert run.poll() is None, (here / "out").read_text()
        time.sleep(0.05)
    os.kill(run.pid, signal.SIGINT)
    assert run.wait() != 0
    text = (here / "out").read_text()
    assert "cancelled job" in text
    assert "Traceback" not in text
    assert next(here.glob("runs/mine/synth/*/verdict-0000.json"))


def test_without_a_home_that_can_be_written_snakemake_keeps_its_cache_in_the_run_folder(monkeypatch, here):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(here / "nobody"))
    assert cache_settings(RunPaths("mine")) == {"XDG_CACHE_HOME": str(here / "runs/mine/.cache")}
    monkeypatch.setenv("HOME", str(here))
    assert cache_settings(RunPaths("mine")) == {}
