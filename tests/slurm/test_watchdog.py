"""The watchdog of a rank, in processes of their own, since it ends them."""

import shutil
import signal
import subprocess
import sys
import time

import pytest

from slurm.attempt import LOGS
from slurm.exclusions import excluded
from slurm.inside.roll_call import FOLDER
from slurm.inside.watchdog import STALLED
from slurm.verdict import explain, read_verdict

RANK = """
import ctypes, os, signal, sys, time
from pathlib import Path
from slurm.inside import watchdog
from slurm.attempt import JobFile
from slurm.config import WatchConfig
from slurm.inside.place import Place, make_job
from data.job import Job

def worked_on():  # its name is in the stacks
    exec(sys.argv[4])

attempt, rank, node = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
watchdog.LAST_SECONDS, watchdog.LOCK_SECONDS, watchdog.PAUSE_SECONDS = 0.3, 2.0, 0.5
place = Place("torchrun", rank, 2, 0, node, "7", 0, "start-1", None, {"a": 1, "b": 1})
watch = WatchConfig(start_minutes=2 / 60, stall_minutes=1 / 60, slow_minutes=2.5 / 60)
job_file = JobFile(run="r", inputs={}, files={}, code={}, minutes=1, tasks_per_node=1, cpus=1, watch=watch)
roll = watchdog.begin(attempt, place)
job = make_job(place, job_file, attempt)
job.pulse.has_started()
with watchdog.watched(attempt, place, job, job_file, roll):
    worked_on()
"""
BEAT = "for i in range({}): job.beat(f'step {{i}}'); time.sleep(0.1)"


@pytest.fixture
def attempt(tmp_path):
    folder = tmp_path / "run" / "sft" / "abc-1"
    (folder / LOGS).mkdir(parents=True)
    return folder


@pytest.fixture
def rank(attempt):
    started = []

    def start(number, work, node="a"):
        command = [sys.executable, "-P", "-c", RANK, attempt, str(number), node, work]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def stacks(attempt, number):
    return (attempt / LOGS / f"7_{number}_stacks.txt").read_text()


def test_a_rank_that_does_nothing_is_ended_with_its_last_event_and_its_stacks(attempt, rank):
    other, hangs = rank(1, BEAT.format(60), "b"), rank(0, "job.beat('step 3: rollout'); time.sleep(60)")
    assert hangs.wait(20) == STALLED
    said = hangs.stdout.read()
    assert "error: rank 0 on a hangs: its last event was 'step 3: rollout'" in said
    assert "worked_on" in stacks(attempt, 0)
    verdict = read_verdict(attempt)
    assert (verdict.why, verdict.rank, verdict.node) == ("error", 0, "a")
    assert "slurm.watch.stall_minutes" in verdict.message and "7_0_stacks.txt" in verdict.message
    assert other.poll() is None


def test_a_rank_that_moves_is_left_alone_and_so_is_a_long_save(attempt, rank):
    work = f"{BEAT.format(15)}\nwith job.slow('save of 15'): time.sleep(1.8)\n{BEAT.format(3)}"
    both = [rank(0, work), rank(1, work, "b")]
    assert [process.wait(30) for process in both] == [0, 0]
    assert not list((attempt / LOGS).iterdir())
    assert read_verdict(attempt) is None


def test_a_long_operation_that_never_ends_is_ended_too(attempt, rank):
    both = [rank(number, "with job.slow('save of 15'): time.sleep(60)", "ab"[number]) for number in (0, 1)]
    assert both[0].wait(20) == STALLED
    assert "'save of 15'" in read_verdict(attempt).message
    assert "slurm.watch.slow_minutes" in read_verdict(attempt).message


def test_a_call_in_c_that_holds_the_interpreter_leaves_its_stacks(attempt, rank):
    rank(1, BEAT.format(80), "b")
    hangs = rank(0, "ctypes.PyDLL(None).sleep(60)")
    assert hangs.wait(20) == 1
    assert "worked_on" in stacks(attempt, 0)
    assert read_verdict(attempt) is None
    assert explain(attempt, "7").message.startswith("rank 0 hung in a call that never came back to Python; its stacks:")


COLLECTIVE = """
c, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
def unlock(c=c, mutex=mutex):
    for _ in range(15): time.sleep(0.1)
    c.pthread_mutex_unlock(mutex)
c.pthread_mutex_lock(mutex)
import threading; threading.Thread(target=unlock).start()
with job.slow("all-reduce"): c.pthread_mutex_lock(mutex)
"""
"""The main thread is in C, where it does not look at Python's signal handlers."""


@pytest.mark.parametrize("work", [BEAT.format(15), COLLECTIVE], ids=["steps", "collective"])
def test_time_in_which_the_whole_process_stood_still_does_not_count(attempt, rank, work):
    """As after `scontrol suspend`, which stops all ranks."""
    said = "\nassert 4 < job.pulse.paused < 6, job.pulse.paused"
    both = [rank(number, work + said, "ab"[number]) for number in (0, 1)]
    while len(list((attempt / FOLDER).glob("*/*.json"))) < 2:
        time.sleep(0.02)
    time.sleep(0.3)
    for process in both:
        process.send_signal(signal.SIGTSTP)
    time.sleep(0.3)
    for process in both:
        process.send_signal(signal.SIGSTOP)
    time.sleep(5)  # longer than the limit, and than that of the timer in C
    for process in both:
        process.send_signal(signal.SIGCONT)
    assert [process.wait(20) for process in both] == [0, 0]


def test_the_one_that_is_frozen_is_named_by_those_that_wait_for_it(attempt, rank):
    waits = rank(0, BEAT.format(8) + "\njob.beat('all-reduce'); time.sleep(60)")
    frozen = rank(
        1,
        BEAT.format(8) + "\njob.beat('later than the other'); time.sleep(0.3); os.kill(os.getpid(), signal.SIGSTOP)",
        "b",
    )
    assert waits.wait(40) == STALLED
    assert frozen.poll() is None
    verdict = read_verdict(attempt)
    assert (verdict.why, verdict.rank, verdict.node) == ("error", 1, "b")
    assert "rank 1 on b hangs: its last event was 'later than the other'" in verdict.message
    assert "it is frozen or gone; rank 0 on a has waited" in verdict.message


def test_the_lowest_rank_that_is_there_names_the_missing_node_which_is_avoided(attempt, rank):
    waits = rank(1, BEAT.format(100), "b")
    assert waits.wait(30) == STALLED
    verdict = read_verdict(attempt)
    assert (verdict.why, verdict.rank, verdict.nodes) == ("node", 1, ("a",))
    assert "rank 0 on node a did not start within 0.0333333 minutes (slurm.watch.start_minutes)" in verdict.message
    assert list(excluded(attempt.parent.parent)) == ["a"]


def test_ranks_of_an_earlier_start_end_when_a_later_one_begins(attempt, rank):
    old = rank(1, BEAT.format(100), "b")
    while not (attempt / FOLDER / "start-1" / "1.json").exists():
        time.sleep(0.02)
    shutil.rmtree(attempt / FOLDER / "start-1")
    assert old.wait(20) == STALLED
    assert "was started again elsewhere: rank 1 of start-1 ends" in old.stdout.read()
