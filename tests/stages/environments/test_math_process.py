import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.environments import graders
from stages.environments.base import GraderError
from stages.environments.config import RowsConfig
from stages.environments.math_process import MathProcess
from stages.environments.registry import make

SLOW = "$\\sin(x)^{40}\\cos(x)^{40}$", "$\\sin(2x)^{40}/2^{40}$"
GRADE_AND_SLEEP = """
import time
from stages.environments.math_process import MathProcess
process = MathProcess()
process.grade("1", "1")
print(process.child.pid, flush=True)
time.sleep(60)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def impatient():
    return MathProcess(cpu_seconds=1)


def test_a_computation_without_end_is_stopped_and_the_next_answer_is_graded(impatient):
    with pytest.raises(TimeoutError, match=r"more than 1 s of processor time"):
        impatient.grade(*SLOW)
    assert impatient.grade("1/2", "It is $0.5$") == (True, True)


def test_a_computation_inside_one_instruction_is_stopped_too(impatient):
    started = time.monotonic()
    with pytest.raises((TimeoutError, ValueError)):
        impatient.grade("$200000000!$", "$200000001!$")
    assert time.monotonic() - started < 60
    assert impatient.grade("3", "$3$") == (True, True)


def test_a_process_that_a_signal_ended_is_replaced_and_the_answer_graded(impatient):
    assert impatient.grade("2", "$2$") == (True, True)
    os.kill(impatient.child.pid, signal.SIGTERM)
    time.sleep(0.2)
    assert impatient.grade("2", "$3$") == (False, True)


def test_no_process_outlives_the_one_that_asked():
    asker = subprocess.Popen([sys.executable, "-c", GRADE_AND_SLEEP], stdout=subprocess.PIPE, text=True)
    child = int(asker.stdout.readline())
    assert is_running(child)
    asker.kill()
    asker.communicate()
    deadline = time.monotonic() + 20
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


def test_a_limit_is_a_grader_error_and_not_a_wrong_answer(tmp_path, monkeypatch, impatient):
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "?", "answer": "1"}\n')
    monkeypatch.setitem(graders.GRADERS, "math", impatient.grade)
    environment = make(RowsConfig(path=str(tmp_path / "tasks.jsonl"), grader="math"))
    environment.reset(task={"prompt": "sine?", "answer": SLOW[0], "trace": "", "level": 0})
    with pytest.raises(GraderError, match=r"on the task 'sine\?': TimeoutError: math-verify took more than 1 s"):
        environment.step(SLOW[1])
