"""Asynchronous mode as a person without a cluster runs it: local actors, an evaluator, the status, and the replay."""

import shutil
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow


def test_a_run_with_local_actors_shows_them_leaves_none_and_each_of_its_batches_can_be_seen_again(
    reference: Path, qianka, tmp_path: Path
):
    shutil.copytree(reference, tmp_path, dirs_exist_ok=True, symlinks=True)
    settings = ("rl.mode=asynchronous", "rl.steps=6", "rl.asynchronous.evaluate_every=2")
    done = qianka(tmp_path, "stage", "rl", "tiny.yaml", *settings)
    assert done.returncode == 0, done.stdout
    assert "actors: 2 and an evaluator, processes of this machine" in done.stdout

    shown = qianka(tmp_path, "status")
    assert shown.returncode == 0 and shown.stdout.count("ended with the run") == 3, shown.stdout
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert [line for line in lines if str(tmp_path) in line] == []

    for step in range(1, 7):
        again = qianka(tmp_path, "replay", "tiny", "--step", str(step))
        assert again.returncode == 0, again.stdout
        assert f"batch of step {step}, learned by version {step - 1}" in again.stdout
        assert "all 8 groups are those that were trained on, bit for bit" in again.stdout
    beyond = qianka(tmp_path, "replay", "--step", "7")
    assert beyond.returncode == 2 and "no step 7; the log has steps 1 to 6" in beyond.stdout
