"""Bare snakemake: its targets, its config, what makes it run a stage again, and two of them at once."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm.lock import hold, let_go
from workflow.config import INPUTS
from workflow.paths import RunPaths

ROOT = Path(__file__).parents[2]
STAGE = re.compile(r"^(?:local)?rule (synth|sft|rl|evaluate):$", re.MULTILINE)


@pytest.fixture
def would_run(snakemake):
    """The stages that a dry run lists, in their order."""

    def dry(*arguments: str, cwd: Path | None = None) -> list[str]:
        done = snakemake("-n", *arguments, cwd=cwd)
        assert done.returncode == 0, done.stdout
        found = set(STAGE.findall(done.stdout))
        return [stage for stage in INPUTS if stage in found]

    return dry


def test_without_a_target_it_is_the_whole_pipeline_and_a_stage_is_a_target(here, would_run):
    assert would_run() == list(INPUTS)
    assert would_run("rl") == ["synth", "sft", "rl"]
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "stages"),
    [
        ([], []),
        (["-R", "evaluate"], ["evaluate"]),
        (["--config", "rl={steps: 5}"], ["rl", "evaluate"]),
        (["--config", "seed=4"], list(INPUTS)),
        (["--config", "slurm={executor: local, rl: {minutes: 9}}"], []),
    ],
)
def test_stages_run_again_where_their_config_changed_and_after(finished_run, would_run, arguments, stages):
    assert would_run(*arguments, "--configfile", "mine.yaml", cwd=finished_run) == stages


@pytest.mark.parametrize("rule", sorted((ROOT / "workflow" / "rules").glob("*.smk")), ids=lambda path: path.stem)
def test_snakemake_deletes_no_checkpoint_since_a_rules_output_is_its_manifest_and_what_is_drawn_of_it(rule):
    """Before it runs a rule again, snakemake removes what stands under `output`."""
    output = rule.read_text().partition("    output:\n")[2].partition("    log:\n")[0]
    drawn = ["paths.report,", "paths.dashboard,"] if rule.stem == "evaluate" else []
    assert output.split() == [f'paths.manifest("{rule.stem}"),', *drawn]


def test_a_changed_value_is_named_by_its_key(finished_run, snakemake):
    (finished_run / "changed.yaml").write_text("rl: {steps: 5}\n")
    output = snakemake("-n", "--configfile", "mine.yaml", "changed.yaml", cwd=finished_run).stdout
    assert output.count("rl is out of date: config: rl.steps 4 -> 5\n") == 1
    assert "evaluate is out of date: input: rl runs before it" in output


def test_the_resolved_config_is_a_config_that_changes_nothing(finished_run, would_run):
    assert would_run("--configfile", "runs/mine/config.json", cwd=finished_run) == []


def test_a_result_that_snakemake_did_not_make_is_judged_by_its_manifest(config, finish, would_run):
    finish(["mine.yaml", "rl.learning_rate=1e-3"])
    mine = ("--configfile", "mine.yaml")
    assert would_run(*mine) == ["rl", "evaluate"]
    assert would_run("sft", *mine) == []
    assert would_run("--config", "rl={learning_rate: 1e-3}", *mine) == []


def test_a_mistake_is_told_before_anything_runs(here, config, snakemake):
    config.write_text("rl: {stepz: 1}\n")
    done = snakemake("--configfile", "mine.yaml")
    assert done.returncode != 0
    assert "mine.yaml:1: unknown key `rl.stepz`; did you mean `steps`?" in done.stdout
    assert not (here / "runs").exists()


def test_a_run_that_somebody_works_on_is_refused(config, snakemake, monkeypatch):
    path = RunPaths("mine").lock
    assert hold(path) is None
    try:
        done = snakemake("synth", "--configfile", "mine.yaml")
        assert done.returncode != 0
        assert re.search(r"runs/mine: process \d+ on \S+ works on this run", done.stdout)
    finally:
        let_go(path)


def test_a_killed_snakemake_leaves_nothing_to_unlock(here, config):
    config.write_text(config.read_text() + "synth: {num_tasks: 300, harder_tasks: 5, workers: 1}\n")
    command = [sys.executable, "-P", "-m", "snakemake", "-s", ROOT / "Snakefile", "--cores", "1", "synth"]
    command += ["--configfile", "mine.yaml"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(here.glob("runs/mine/synth/*/attempt.json")):
        time.sleep(0.05)
    first.kill()
    first.wait()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert RunPaths("mine").manifest("synth").exists()
    assert [path.name[-2:] for path in here.glob("runs/mine/synth/*-*/")] == ["-1"]


@pytest.mark.slow
def test_the_pipeline_works_in_a_folder_of_any_name(tmp_path):
    folder = tmp_path / "a b'c$d"
    folder.mkdir()
    config = folder / "it's $mine.yaml"
    config.write_text("synth: {num_tasks: 300, harder_tasks: 5, workers: 1}\nslurm: {executor: local}\n")
    command = [sys.executable, "-P", "-m", "snakemake", "-s", ROOT / "Snakefile", "--cores", "1", "synth"]
    done = subprocess.run(
        [*command, "--configfile", config.name], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    assert (folder / "runs" / "it-s-mine" / "synth" / "manifest.json").exists()


def test_the_snakefiles_take_no_name_that_snakemake_owns():
    for path in [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]:
        assert not re.search(r"^import (workflow|checkpoints)\b", path.read_text(), re.MULTILINE), path


def test_no_checkpoint_is_an_output():
    """Snakemake deletes the outputs of a rule before it runs."""
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        text = path.read_text()
        assert "directory(" not in text
        outputs = text.split("output:")[1].split("log:")[0]
        assert set(re.findall(r"paths\.(\w+)", outputs)) <= {"manifest", "report", "dashboard"}
