"""Threads that do not keep the process from ending."""

import subprocess
import sys
from pathlib import Path


def test_a_thread_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    code = """
import time
from stages.algorithms.threads import start
start(lambda: time.sleep(600))
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
