"""Grading in processes of its own: what no limit, crash or signal may do to the job."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stages.environments import processes
from stages.environments.base import GraderError
from stages.environments.config import RewardConfig, RowsConfig
from stages.environments.processes import CallError, call
from stages.environments.registry import make
from stages.environments.rewards import Episode, Term, load_terms
from stages.environments.rows import Rows

SLOW = "$\\sin(x)^{40}\\cos(x)^{40}$", "$\\sin(2x)^{40}/2^{40}$"
CALL_AND_SLEEP = """
import os, time
from stages.environments.processes import call
print(call(os.getpid), flush=True)
time.sleep(60)
"""
OWN = """
import ctypes, os, subprocess, sys, time
from stages.environments.rewards import Episode

CALLS = []


def endless(episode: Episode) -> float:
    while episode.parsed:
        pass
    return 1.0


def asleep(episode: Episode) -> float:
    child = subprocess.Popen(["sleep", "600"])
    open(episode.task["file"], "w").write(str(child.pid))
    time.sleep(600)


def crashing(episode: Episode) -> float:
    return ctypes.string_at(0)


def leaving(episode: Episode) -> float:
    sys.exit(0)


def large(episode: Episode) -> float:
    return len(bytes(2**40))


def loud(episode: Episode) -> float:
    print("a word on standard output")
    return 0.5


def odd(episode: Episode) -> float:
    return lambda: 1.0
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_ended(pid: int) -> None:
    deadline = time.monotonic() + 20
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


def load(path: Path, name: str) -> Term:
    return load_terms([RewardConfig(term=f"{path}:{name}")])[0]


def episode(**task: Any) -> Episode:
    return Episode(task=task, turns=("a",), tokens=(3,), limit=9, finished=True, reward=1.0, parsed=True)


def mathematics(tmp_path: Path, answer: str) -> Rows:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "?", "answer": "1"}\n')
    environment = make(RowsConfig(path=str(tmp_path / "tasks.jsonl"), grader="math"))
    assert isinstance(environment, Rows)
    environment.reset(task={"prompt": "sine?", "answer": answer, "trace": "", "level": 0})
    return environment


def test_a_computation_without_end_is_a_grader_error_and_the_next_answer_is_graded(tmp_path: Path) -> None:
    environment = mathematics(tmp_path, SLOW[0])
    environment.cpu_seconds = 4
    with pytest.raises(GraderError, match=r"on the task 'sine\?': took more than 4 s of processor time"):
        environment.step(SLOW[1])
    assert mathematics(tmp_path, "1/2").step("It is $0.5$")[1] == 1


def test_a_computation_inside_one_instruction_is_stopped_too(tmp_path: Path) -> None:
    environment, started = mathematics(tmp_path, "$200000000!$"), time.monotonic()
    environment.cpu_seconds = 3
    with pytest.raises(GraderError):
        environment.step("$200000001!$")
    assert time.monotonic() - started < 60


def test_a_process_that_a_signal_ended_is_replaced_and_the_call_answered() -> None:
    before = call(os.getpid)
    assert before == call(os.getpid) != os.getpid()
    os.kill(before, signal.SIGTERM)
    time.sleep(0.2)
    assert call(os.getpid) != before


def test_no_process_outlives_the_one_that_asked() -> None:
    asker = subprocess.Popen([sys.executable, "-c", CALL_AND_SLEEP], stdout=subprocess.PIPE, text=True)
    assert asker.stdout is not None
    child = int(asker.stdout.readline())
    assert is_running(child)
    asker.kill()
    asker.communicate()
    wait_until_ended(child)


def test_a_term_that_never_ends_has_failed(own: Path) -> None:
    limited: Any = load(own, "endless").function
    term = Term("endless", 1.0, partial(limited, cpu_seconds=1), is_own=True)
    with pytest.raises(GraderError, match="the reward term endless failed: took more than 1 s of processor time"):
        term(episode())


def test_a_term_that_waits_for_ever_has_failed_and_what_it_started_ends_with_it(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(os.getpid)
    monkeypatch.setattr(processes, "CLOCK_SECONDS", 8)
    with pytest.raises(GraderError, match="the reward term asleep failed: took more than 8 s on the clock"):
        load(own, "asleep")(episode(file=str(tmp_path / "pid")))
    wait_until_ended(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("name", "why"),
    [("crashing", "its process crashed"), ("leaving", "SystemExit: 0"), ("large", "MemoryError")],
)
def test_a_term_whose_process_ends_has_failed(own: Path, name: str, why: str) -> None:
    with pytest.raises(GraderError, match=f"the reward term {name} failed: {why}"):
        load(own, name)(episode())
    assert load(own, "loud")(episode()) == 0.5


def test_what_a_term_gives_instead_of_a_number_is_shown(own: Path) -> None:
    with pytest.raises(ValueError, match="the reward term odd gave <function odd.*but it must return a number"):
        load(own, "odd")(episode())


def test_a_file_that_changes_while_the_stage_runs_changes_no_reward(own: Path) -> None:
    term = load(own, "loud")
    own.write_text(OWN.replace("0.5", "0.75"))
    assert term(episode()) == 0.5 and load(own, "loud")(episode()) == 0.75


ENVIRONMENT = """
import random
from stages.environments.base import Answer
from stages.environments.config import GuessConfig
from stages.environments.guess import Guess


class Slow(Guess):
    cpu_seconds = 1
    said = ()

    def answer(self, task, action):
        while action == "for ever":
            pass
        self.said = (*self.said, action)
        return Answer(f"{len(self.said)}:", 0.25, len(self.said) == 3, True)
"""


def test_an_environment_keeps_what_it_has_set_in_the_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_environment.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(tmp_path)
    processes.IDLE.clear()  # those that run do not know the folder
    from slow_environment import GuessConfig, Slow  # pyright: ignore

    environment = Slow(GuessConfig(turns=5))
    environment.reset(seed=1)
    assert [environment.step(word)[0::2] for word in "abc"] == [("1:", False), ("2:", False), ("3:", True)]
    assert environment.said == ("a", "b", "c") and environment.turns_left == 2
    with pytest.raises(GraderError, match="guess: grading failed .* took more than 1 s of processor time"):
        environment.step("for ever")


def test_a_call_that_fails_says_why() -> None:
    with pytest.raises(CallError, match="ZeroDivisionError"):
        call(divmod, 1, 0)
