"""Jobs that are there already: joined, shown and cancelled by their record, with processes of this machine as jobs."""

import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

QIANKA = [sys.executable, "-P", "-m", "workflow.cli"]


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*QIANKA, *words], cwd=folder, start_new_session=True, **pipes)


def read_until(command: subprocess.Popen[str], words: str) -> None:
    for line in command.stdout:
        if words in line:
            return
    pytest.fail(f"it ended without {words!r}")


@pytest.fixture
def waiter(tiny, qianka) -> Generator[subprocess.Popen[str]]:
    """A command that waits for an sft stage of a minute."""
    assert qianka(tiny.parent, "stage", "synth", tiny.name).returncode == 0
    command = start(tiny.parent, "stage", "sft", tiny.name, "sft.steps=3000")
    read_until(command, "steps/s")
    yield command
    qianka(tiny.parent, "cancel", "tiny")
    command.communicate()


@pytest.mark.slow
def test_a_job_is_joined_shown_and_cancelled_though_the_config_has_changed(waiter, tiny, qianka):
    folder = tiny.parent
    tiny.write_text(tiny.read_text().replace("seed: 3", "seed: 4"))
    before = time.monotonic()
    joined = start(folder, "attach")
    read_until(joined, "sft: re-attached")
    assert time.monotonic() - before < 30, "2 s on a quiet machine; the stage takes a minute"
    shown = start(folder, "logs", "-f")
    read_until(shown, "on 1 rank(s)")
    assert "its ranks are 0 to 0" in qianka(folder, "logs", "--rank", "3").stdout

    said = qianka(folder, "cancel").stdout
    assert "committed" in said and "the same command resumes it" in said
    assert joined.wait(30) == 1 and waiter.wait(30) == 1
    assert shown.wait(30) == 0, "it has to end with the job"
    assert "was cancelled" in joined.stdout.read()
    assert "nothing of run tiny is under way" in qianka(folder, "cancel").stdout
    assert "nothing of run tiny is under way" in qianka(folder, "attach").stdout
    assert "asked to stop" in qianka(folder, "logs").stdout


@pytest.mark.slow
def test_the_one_who_joined_publishes_when_the_other_is_gone(tiny, qianka):
    folder = tiny.parent
    first = start(folder, "stage", "synth", tiny.name, "synth.num_tasks=8000")
    read_until(first, "submitted")
    first.kill()
    joined = qianka(folder, "attach", "tiny", "synth")
    assert joined.returncode == 0, joined.stdout
    assert (folder / "runs/tiny/synth/manifest.json").exists()
    again = qianka(folder, "stage", "synth", tiny.name, "synth.num_tasks=8000")
    assert "synth: found finished" in again.stdout, "to join is not to take the result"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("attach", "tinny"), "there is no run 'tinny' in"),
        (("attach", "tinny"), "did you mean tiny?"),
        (("cancel", "tiny", "stf"), "there is no stage 'stf'; did you mean sft?"),
        (("logs", "synth"), "(a stage's name comes after the run's)"),
        (("logs", "tiny", "rl"), "the stage rl of run tiny was never started"),
    ],
)
def test_wrong_names_are_answered_with_near_ones(tiny, qianka, words, answer):
    (tiny.parent / "runs/tiny").mkdir(parents=True)
    (tiny.parent / "runs/tiny/config.json").write_text("{}")
    done = qianka(tiny.parent, *words)
    assert (done.returncode, answer in done.stdout) == (2, True), done.stdout


def test_without_runs_one_is_told_where_to_go(tmp_path, qianka):
    done = qianka(tmp_path, "logs")
    assert done.returncode == 2
    assert "go to the folder that holds runs/" in done.stdout
