"""What is left when the command is killed: the job, and nothing that stands in the way of the same command."""

import subprocess
import sys
import time

import psutil
import pytest


def snakemakes(folder) -> list[psutil.Process]:
    found = [p for p in psutil.process_iter(["cmdline", "cwd", "status"]) if p.info["cwd"] == str(folder)]
    return [p for p in found if "snakemake" in (p.info["cmdline"] or []) and p.info["status"] != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [True, False], ids=["command and terminal", "terminal"])
def test_after_the_loss_of_the_terminal_and_perhaps_the_command_the_same_command_goes_on(qianka, tiny, is_killed):
    folder = tiny.parent
    command = [sys.executable, "-P", "-m", "workflow.cli", "run", tiny.name, "sft.steps=3000"]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = subprocess.Popen(command, cwd=folder, start_new_session=True, **pipe)
    for line in running.stdout:
        if line.startswith(b"sft: submitted"):
            break
    if is_killed:
        running.kill()
    running.stdout.close()  # its reader is gone: nobody sees what is written from now on
    end = time.monotonic() + 30  # long before the stage ends
    while snakemakes(folder):
        assert time.monotonic() < end, "Snakemake goes on with nobody there"
        time.sleep(0.2)
    assert running.wait(30) != 0

    done = qianka(folder, "stage", "sft", tiny.name, "sft.steps=3000")
    assert done.returncode == 0, done.stdout
    assert "sft: re-attached" in done.stdout or "sft: found finished" in done.stdout
