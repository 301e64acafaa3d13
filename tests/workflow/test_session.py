import json
import os
import subprocess
import sys

import pytest

from slurm.lock import let_go
from slurm.record import read_record
from workflow import session
from workflow.config import load
from workflow.paths import RunPaths
from workflow.session import accept_published, begin, release


@pytest.fixture
def run(config, monkeypatch):
    monkeypatch.setattr(session, "WAIT_SECONDS", 0.3)
    settings = load([config.name])
    yield settings
    let_go(RunPaths("mine").lock)


def test_a_run_begins_with_its_resolved_config(run):
    begin(run)
    assert load(["runs/mine/config.json"]) == run


HOLDER = """
import sys, time
from pathlib import Path
from slurm.lock import hold
assert hold(Path(sys.argv[1])) is None
print("held", flush=True)
time.sleep(60)
"""


def test_a_lock_goes_with_its_holder_however_it_ends(run):
    path = RunPaths("mine").lock
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match=rf"process {holder.pid} on .* works on this run.*name=mine-2"):
        begin(run)
    holder.kill()
    holder.wait()
    begin(run)


def test_what_another_one_finishes_while_we_wait_for_the_run_is_not_made_a_second_time(run, finish, monkeypatch):
    finish(["mine.yaml"], "synth")
    release(run)
    folder = RunPaths("mine").stage("synth")
    (folder / "record.json").write_text(read_record(folder).model_copy(update={"accepted": False}).model_dump_json())
    with monkeypatch.context() as patch:
        patch.setattr(session, "hold", lambda path, seconds: accept_published(run))
        with pytest.raises(ValueError, match="has finished stages .* run the same command again"):
            begin(run)
    begin(run)


def test_what_the_holder_calls_may_work_on_the_run(run, monkeypatch):
    begin(run)
    code = "from workflow.config import load; from workflow.session import begin; begin(load(['mine.yaml']))"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    release(run)
    assert session.LOCKED not in os.environ


def test_a_run_folder_of_another_config_is_not_touched(run, here):
    begin(run)
    release(run)
    before = RunPaths("mine").config.read_text()
    (here / "other").mkdir()
    (here / "other" / "mine.yaml").write_text("seed: 9\n")
    with pytest.raises(
        ValueError, match=r"runs/mine was made by mine\.yaml, and this is other/mine\.yaml.*name=mine-2"
    ):
        begin(load(["other/mine.yaml"]))
    assert RunPaths("mine").config.read_text() == before
    begin(load(["runs/mine/config.json", "rl.steps=5"]))
    assert json.loads(RunPaths("mine").config.read_text())["rl"]["steps"] == 5


def test_only_what_is_published_is_taken(run, finish):
    finish(["mine.yaml"], "synth")
    folder = RunPaths("mine").stage("synth")
    record = read_record(folder)
    for there, taken in ((False, False), (True, True)):
        (folder / "record.json").write_text(record.model_copy(update={"accepted": False}).model_dump_json())
        manifest = (folder / record.attempt / "manifest.json").read_bytes()
        RunPaths("mine").manifest("synth").unlink(missing_ok=True)
        if there:
            RunPaths("mine").manifest("synth").write_bytes(manifest)
        accept_published(run)
        assert read_record(folder).accepted is taken
