"""A stage as local processes: it outlives its terminal, and is never started twice."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from checkpoints.manifest import NAME, Result
from slurm.claim import submit_or_attach, take_over
from slurm.record import read_record
from slurm.wait import local

LONG = ["synth.num_tasks=100000", "synth.block_tasks=200", "synth.workers=1", "slurm.executor=local"]
SHORT = ["synth.num_tasks=60", "synth.harder_tasks=5", "synth.workers=1", "slurm.executor=local"]


@pytest.fixture
def stage_folder(tmp_path):
    yield tmp_path / "runs" / "demo" / "synth"
    for attempt in (tmp_path / "runs" / "demo" / "synth").glob("*-*/"):
        local.cancel(attempt, lambda: True)


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def running_attempt(stage_folder: Path) -> Path:
    """The attempt folder, once its job makes progress."""
    return wait_until(lambda: next(iter(stage_folder.glob("*-1/progress.json")), None)).parent


def ranks(attempt: Path) -> list[psutil.Process]:
    return [process for process in local.processes(attempt) if "submitit.core._submit" in process.cmdline()]


def test_a_stage_runs_and_is_published_and_asked_for_again_it_is_made_anew(stage_command, stage_folder):
    for number in ("-1", "-2"):
        command = stage_command(*SHORT)
        output = command.communicate()[0]
        assert command.returncode == 0, output
        result = Result(stage_folder / NAME)
        assert result.folder == stage_folder / result.manifest.attempt
        assert result.folder.name.endswith(number)
        assert read_record(stage_folder).accepted
    assert sorted(path.name[-2:] for path in stage_folder.glob("*-*/")) == ["-1", "-2"]


def test_a_killed_terminal_leaves_the_job_which_the_next_call_finds(stage_command, stage_folder):
    first = stage_command(*LONG)
    attempt = running_attempt(stage_folder)
    (rank,) = ranks(attempt)
    first.kill()
    first.wait()
    second = stage_command(*LONG)
    assert "re-attached" in second.stdout.readline()
    assert ranks(attempt) == [rank]
    second.send_signal(signal.SIGTERM)
    second.communicate()
    assert second.returncode == 75
    assert rank.is_running()


def test_qianka_status_sees_a_job_that_runs(stage_command, stage_folder, tmp_path):
    stage_command(*LONG)
    running_attempt(stage_folder)
    command = [sys.executable, "-P", "-m", "workflow.cli", "status", "demo"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert re.search(r"synth +running +\w+-1 ", said), said


def test_hang_up_detaches(stage_command, stage_folder):
    command = stage_command(*LONG)
    attempt = running_attempt(stage_folder)
    os.killpg(command.pid, signal.SIGHUP)
    output = command.communicate()[0]
    assert command.returncode == 75, output
    assert "the same command finds it again" in output
    assert ranks(attempt)


def test_ctrl_c_ends_the_job_after_it_has_committed(stage_command, stage_folder):
    command = stage_command(*LONG)
    attempt = running_attempt(stage_folder)
    os.killpg(command.pid, signal.SIGINT)
    output = command.communicate()[0]
    assert command.returncode == 130, output
    assert not local.processes(attempt)
    assert "stopped" in next(attempt.glob("verdict-*.json")).read_text()


def test_after_everything_was_killed_the_same_attempt_goes_on(stage_command, stage_folder):
    first = stage_command(*LONG)
    attempt = running_attempt(stage_folder)
    for process in [psutil.Process(first.pid), *local.processes(attempt)]:
        process.kill()
    first.wait()
    wait_until(lambda: not local.processes(attempt))
    second = stage_command(*LONG)
    assert f"resumed: {attempt.name}" in second.stdout.readline()
    second.kill()


def test_the_caller_of_an_orphan_is_missed_within_seconds(stage_command, stage_folder, monkeypatch):
    caller = subprocess.Popen(["sleep", "60"])
    monkeypatch.setenv("QIANKA_CALLERS", str(caller.pid))
    command = stage_command(*LONG)
    running_attempt(stage_folder)
    caller.kill()  # and not reaped: a zombie is dead
    command.communicate(timeout=60)
    assert command.returncode == 75
    caller.wait()
    assert not (stage_folder / NAME).exists()


def test_a_second_local_process_does_not_enter_an_attempt(stage_command, stage_folder):
    stage_command(*LONG)
    attempt = running_attempt(stage_folder)
    second = subprocess.run([sys.executable, "-P", "-m", "slurm.job", attempt], capture_output=True, text=True)
    assert second.returncode == 1
    assert re.search(r"process \d+ on \S+ runs this attempt already", second.stdout)


def test_a_job_whose_note_was_never_made_is_found_by_its_command_line(stage_command, stage_folder):
    first = stage_command(*LONG)
    attempt = running_attempt(stage_folder)
    first.kill()
    first.wait()
    record = read_record(stage_folder)
    (stage_folder / "record.json").write_text(record.model_copy(update={"job_id": None}).model_dump_json())
    second = stage_command(*LONG)
    assert "re-attached" in second.stdout.readline()
    assert len(ranks(attempt)) == 1
    second.kill()


def test_torchrun_runs_the_ranks_of_an_attempt(request_for):
    attached = take_over(request_for(), None)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "slurm.job"]
    done = subprocess.run([*command, attached.folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on 2 rank(s)" in done.stdout
    assert submit_or_attach(request_for()).how == "found finished"


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"


@pytest.mark.parametrize(("grace", "hurry"), [(0.5, False), (60.0, True)])
def test_a_process_that_does_not_leave_in_its_time_is_killed(tmp_path, monkeypatch, grace, hurry):
    monkeypatch.setattr(local, "GRACE_SECONDS", grace)
    command = [sys.executable, "-c", STUBBORN, "slurm.job", tmp_path]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    process.stdout.readline()
    start = time.monotonic()
    local.cancel(tmp_path, lambda: hurry)
    assert process.wait(5) == -signal.SIGKILL
    assert time.monotonic() - start >= (0 if hurry else grace)


@pytest.mark.parametrize("name", ["a b'c$d", "new\nline"])
def test_a_stage_runs_in_a_folder_of_any_name(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "workflow.cli", "stage", "synth", *SHORT]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "runs" / "demo" / "synth" / NAME).exists()
