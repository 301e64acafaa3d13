"""The real Slurm of tests/cluster for benchmarks: the one that runs already, or one for as long as the block takes."""

import os
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from benchmarks.commands import ROOT

SCRIPT = ["bash", str(ROOT / "tests" / "cluster" / "cluster.sh")]
POLL_SECONDS = 0.01
Found = TypeVar("Found")


class NotHere(Exception):
    """This machine cannot start the cluster."""


@contextmanager
def cluster() -> Generator[None]:
    """Make this process, and its children, clients of the cluster. Raises NotHere."""
    answer = subprocess.run([*SCRIPT, "possible"], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise NotHere(answer.stdout.strip())
    ours = subprocess.run([*SCRIPT, "running"], check=False).returncode != 0
    if ours:
        subprocess.run([*SCRIPT, "up"], check=True)
    said = subprocess.check_output([*SCRIPT, "env"], text=True)
    os.environ["SLURM_CONF"] = said.split("'")[1]
    try:
        yield
    finally:
        if ours:
            subprocess.run([*SCRIPT, "down"], check=True)


def wait_for(find: Callable[[], Found | None], seconds: float = 180) -> Found:
    """What `find` finds, asked again and again until it is something."""
    end = time.monotonic() + seconds
    while (found := find()) is None:
        assert time.monotonic() < end, f"nothing after {seconds:.0f} s"
        time.sleep(POLL_SECONDS)
    return found


def show(job_id: str, key: str) -> str | None:
    """A value of `scontrol show job`."""
    done = subprocess.run(["scontrol", "show", "job", "-o", job_id], capture_output=True, text=True, check=False)
    found = [word.partition("=")[2] for word in done.stdout.split() if word.startswith(f"{key}=")]
    return found[0] if found else None
