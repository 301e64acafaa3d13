import errno
import os
import stat
from pathlib import Path

import pytest

from workflow import preflight
from workflow.config import load
from workflow.preflight import check_config, check_folder, check_minutes

OF_32 = ("model.architecture.num_heads=3", "model.architecture.num_key_value_heads=1")
"""Heads of a size that vLLM has on a CPU."""


def refused(*arguments: str) -> str:
    with pytest.raises(ValueError) as caught:
        check_config(load([*arguments, "slurm.executor=local"]))
    return str(caught.value)


def test_the_demo_passes(here):
    check_config(load(["slurm.executor=local"]))


def test_a_model_folder_that_is_none_is_named_with_what_it_lacks(here):
    override = "model.folder=models/x"
    assert "there is no folder models/x, neither in" in refused(override)
    (here / "models" / "x").mkdir(parents=True)
    assert "models/x has no config.json" in refused(override)
    (here / "models" / "x" / "config.json").touch()
    assert "models/x has no *.safetensors" in refused(override)
    (here / "models" / "x" / "model.safetensors").touch()
    check_config(load([override, "slurm.executor=local"]))


def test_the_rows_of_the_user_are_looked_at(here):
    rows = "environment={name: rows, path: mine.jsonl}"
    assert refused("environment.name=rows").startswith("environment.path is empty")
    assert refused(rows).startswith("environment.path: mine.jsonl")
    (here / "mine.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "a"}\n')
    assert "mine.jsonl:2 answer" in refused(rows)


def test_a_broken_file_of_harder_rows_is_named_by_its_own_key(here):
    (here / "mine.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    message = refused("environment={name: rows, path: mine.jsonl, harder_path: none.jsonl}")
    assert message.startswith("environment.harder_path: none.jsonl")


def test_a_vllm_that_is_not_there_is_named_with_the_way_out(here, monkeypatch):
    check_config(load(["engine.name=vllm", "slurm.executor=local", *OF_32]))
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    message = refused("engine.name=vllm_server")
    assert "engine.name is vllm_server, but there is no vllm here" in message
    assert "pip install" in message and "engine.name=torch" in message


def test_the_command_of_the_engines_document_passes_on_a_machine_without_cards(monkeypatch):
    monkeypatch.setattr(preflight, "CARDS", ())
    root = Path(__file__).parents[2]
    text = (root / "docs" / "engines.md").read_text()
    (command,) = [line for line in text.splitlines() if line.startswith("qianka run")]
    config, *overrides = command.split()[2:]
    check_config(load([str(root / config), *overrides, "slurm.executor=local"]))


def test_heads_that_vllm_on_a_cpu_has_not_are_refused_before_the_run(here, monkeypatch):
    monkeypatch.setattr(preflight, "CARDS", ())
    assert "no attention for heads of size 24" in refused("engine.name=vllm", "slurm.executor=local")
    folder = here / "model"
    folder.mkdir()
    (folder / "a.safetensors").touch()
    (folder / "config.json").write_text('{"hidden_size": 64, "num_attention_heads": 4}')
    message = refused("engine.name=vllm", "slurm.executor=local", "model.folder=model")
    assert "no attention for heads of size 16" in message and "engine.name=torch" in message
    (folder / "config.json").write_text('{"hidden_size": 64, "num_attention_heads": 4, "head_dim": 128}')
    check_config(load(["engine.name=vllm", "slurm.executor=local", "model.folder=model"]))


def test_an_unknown_algorithm_lists_the_shipped_ones(here):
    message = refused("rl.algorithm=gpro")
    assert "rl.algorithm: 'gpro'" in message
    assert "did you mean gspo or grpo?" in message


def test_an_algorithm_that_cannot_be_executed_is_refused_before_a_node_is_asked_for(here):
    (here / "mine.yaml").write_text("update:\n  loss: {operator: magic}\n")
    assert "there is no operator 'magic'" in refused("rl.algorithm=mine.yaml")


def test_two_nodes_need_slurm(here):
    assert refused("slurm.rl.nodes=2").startswith("slurm.rl.nodes is 2, but without Slurm there is one")


def test_a_job_has_time_to_work_before_it_is_told_that_its_time_is_over(here):
    shape = ("slurm.executor=slurm", "slurm.rl.minutes=5", "slurm.signal_seconds=")
    with pytest.raises(ValueError, match=r"slurm\.rl\.minutes is 5, but slurm\.signal_seconds .* 151 s") as caught:
        check_config(load([*shape[:2], f"{shape[2]}151"]))
    assert str(caught.value).endswith("give it 6 minutes, or make slurm.signal_seconds 150")
    check_minutes(load([*shape[:2], f"{shape[2]}150"]))


def test_shards_make_whole_copies_of_the_model(here):
    shape = ("slurm.rl.tasks_per_node=4", "slurm.rl.shard_ranks=")
    check_config(load([shape[0], f"{shape[1]}2", "slurm.executor=local"]))
    assert refused(shape[0], f"{shape[1]}3").startswith(
        "slurm.rl.shard_ranks is 3, but the 4 ranks are no multiple of it; 2 is near"
    )


def test_slurm_that_is_not_there_is_named(here, monkeypatch):
    monkeypatch.setenv("PATH", str(here))
    with pytest.raises(ValueError, match="there is no sbatch here; take slurm.executor=local"):
        check_config(load(["slurm.executor=slurm"]))


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_run_folder_is_its_owners_alone_until_he_opens_it(here, umask):
    folder, before = here / "runs" / "x", os.umask(umask)
    try:
        check_folder(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.chmod(0o750)
        check_folder(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("number", "told"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "may not write")],
)
def test_a_folder_that_takes_no_files_is_named(here, monkeypatch, number, told):
    def broken(path):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(preflight, "commit", broken)
    with pytest.raises(ValueError, match=rf"{here}/runs/x: cannot write the run's files: .*{told}"):
        check_folder(here / "runs" / "x")
