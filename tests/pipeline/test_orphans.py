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
def test_after_a_kill_of_the_command_and_its_terminal_the_same_command_goes_on(qianka, tiny):
    folder = tiny.parent
    command = [sys.executable, "-P", "-m", "workflow.cli", "run", tiny.name, "sft.steps=2000"]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=folder, start_new_session=True, **pipe) as killed:
        for line in killed.stdout:
            if line.startswith(b"sft: submitted"):
                break
        killed.kill()
    end = time.monotonic() + 30
    while snakemakes(folder):
        assert time.monotonic() < end, "Snakemake waits for ever"
        time.sleep(0.2)

    done = qianka(folder, "stage", "sft", tiny.name, "sft.steps=2000")
    assert done.returncode == 0, done.stdout
    assert "sft: re-attached" in done.stdout or "sft: found finished" in done.stdout
