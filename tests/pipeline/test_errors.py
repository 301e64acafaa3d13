"""What a person gets wrong ends with one clean message: what, where, and the way out."""

import json
import os
import subprocess
from pathlib import Path

import pytest

TINY_ROWS = """
environment: {name: rows, path: rows.jsonl}
model: {architecture: {hidden_size: 32, num_layers: 1, num_heads: 2, num_key_value_heads: 1, intermediate_size: 64}}
sft: {steps: 2, batch_sequences: 4, max_tokens: 40}
slurm: {executor: local}
"""


def assert_clean(done: subprocess.CompletedProcess[str], *wanted: str) -> None:
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stdout, done.stdout
    assert done.stdout.count("error: ") == 1, done.stdout
    for text in wanted:
        assert text in done.stdout, done.stdout


def write_rows(folder: Path, rows: list[dict[str, str]]) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = folder / "mine.yaml"
    config.write_text(TINY_ROWS)
    return config


def rows(number: int) -> list[dict[str, str]]:
    return [{"prompt": f"{index}+1=", "answer": str(index + 1)} for index in range(number)]


def test_an_unknown_key_is_named_with_its_line_and_the_right_one(qianka, tiny):
    tiny.write_text(tiny.read_text().replace("  batch_sequences:", "  batch_sequence:"))
    assert_clean(qianka(tiny.parent, "run", tiny.name), "sft.batch_sequence", "tiny.yaml:9", "batch_sequences")


def test_a_value_of_the_wrong_type_is_named_with_its_source(qianka, tiny):
    done = qianka(tiny.parent, "run", tiny.name, "rl.steps=many")
    assert_clean(done, "rl.steps", "command line", "many", "integer")


def test_a_missing_model_folder_is_named(qianka, tiny):
    done = qianka(tiny.parent, "run", tiny.name, "model.folder=models/none")
    assert_clean(done, "model.folder", "models/none", "Hugging Face folder")


def test_a_broken_row_is_named_before_anything_runs(qianka, tmp_path):
    config = write_rows(tmp_path, [*rows(2), {"prompt": "3+1="}])
    assert_clean(qianka(tmp_path, "run", config.name), "environment.path", "rows.jsonl:3 answer")
    assert not list(tmp_path.glob("runs/*/synth"))


def test_an_empty_dataset_is_named(qianka, tmp_path):
    config = write_rows(tmp_path, [])
    assert_clean(qianka(tmp_path, "run", config.name), "rows.jsonl", "no rows")


@pytest.mark.slow
def test_a_broken_row_far_down_is_named_by_the_job(qianka, tmp_path):
    config = write_rows(tmp_path, [*rows(1500), {"prompt": "3+1="}])
    assert_clean(qianka(tmp_path, "run", config.name), "rows.jsonl:1501 answer")


@pytest.mark.slow
def test_a_sequence_longer_than_the_context_is_named(qianka, tmp_path):
    config = write_rows(tmp_path, [*rows(100), {"prompt": "1" * 60 + "=", "answer": "1"}])
    done = qianka(tmp_path, "run", config.name, "synth.validation_share=0")
    assert_clean(done, "sft", "sft.max_tokens", "40")
    assert done.stdout.splitlines()[-1].startswith("sft failed: "), "the last line says what happened"
    assert "failed: " in qianka(tmp_path, "status", "mine").stdout


def test_a_full_disk_is_named_before_anything_runs(qianka, tiny):
    folder = tiny.parent / "runs" / "tiny"
    folder.mkdir(parents=True)
    (folder / ".probe.writing").symlink_to("/dev/full")
    assert_clean(qianka(tiny.parent, "run", tiny.name), str(folder), "disk is full", "free some space")


def test_a_run_folder_that_takes_no_files_is_named(qianka, tiny):
    folder = tiny.parent / "runs" / "tiny"
    folder.mkdir(parents=True)
    folder.chmod(0o555)
    # root writes everywhere, unless it has lost the capability to.
    prefix = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    assert_clean(qianka(tiny.parent, "run", tiny.name, prefix=prefix), str(folder), "may not write", "permissions")


def test_a_run_folder_of_another_config_is_left_alone(qianka, tiny):
    other = tiny.with_name("other.yaml")
    other.write_text(tiny.read_text())
    folder = tiny.parent / "runs" / "tiny"
    folder.mkdir(parents=True)
    assert qianka(tiny.parent, "run", "other.yaml", "name=tiny", "rl.steps=many").returncode != 0
    (folder / "config.json").write_text(json.dumps({"source": "tiny.yaml"}))
    done = qianka(tiny.parent, "run", "other.yaml", "name=tiny")
    assert_clean(done, "runs/tiny", "made by tiny.yaml", "other.yaml", "name=tiny-2")
    assert list(folder.iterdir()) == [folder / "config.json"]
