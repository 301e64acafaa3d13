"""The watchdog of a rank, in processes of their own, since it ends them."""

import signal
import subprocess
import sys
import time

import pytest

from slurm.attempt import LOGS
from slurm.exclusions import excluded
from slurm.inside.roll_call import FOLDER, read_roll
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
watchdog.LAST_SECONDS, watchdog.LOCK_SECONDS, watchdog.PAUSE_SECONDS = 0.3, float(sys.argv[6]), 0.5
place = Place("torchrun", rank, 2, 0, node, "7", 0, "start-1", None, {"a": 1, "b": 1})
watch = WatchConfig(start_minutes=float(sys.argv[5]) / 60, stall_minutes=1 / 60, slow_minutes=2.5 / 60)
job_file = JobFile(run="r", inputs={}, files={}, code={}, minutes=1, tasks_per_node=1, cpus=1, watch=watch)
roll = watchdog.begin(attempt, place)
job = make_job(place, job_file, attempt)
job.pulse.has_started()
with watchdog.watched(attempt, place, job, job_file, roll):
    worked_on()
"""
BEAT = "for i in range({}): job.beat(f'step {{i}}'); time.sleep(0.1)"
MEET = "while len(list(roll.glob('*.json'))) < 2: job.beat('start'); time.sleep(0.02)\n"
"""One process may start seconds after the other, and the ages of what they did last are compared."""


@pytest.fixture
def attempt(tmp_path):
    folder = tmp_path / "run" / "sft" / "abc-1"
    (folder / LOGS).mkdir(parents=True)
    return folder


@pytest.fixture
def rank(attempt):
    started = []

    def start(number, work, node="a", seconds=30, lock=15):
        """It waits `seconds` for the other one. `lock` is how long after the limit the timer in C rings.

        It is so long that the timer does not ring first after a pause of the whole machine.
        """
        command = [sys.executable, "-P", "-c", RANK, attempt, str(number), node, work, str(seconds), str(lock)]
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
    other = rank(1, MEET + BEAT.format(60), "b")
    hangs = rank(0, MEET + "job.beat('step 3: rollout'); time.sleep(60)")
    assert hangs.wait(60) == STALLED
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
    both = [rank(number, MEET + "with job.slow('save of 15'): time.sleep(60)", "ab"[number]) for number in (0, 1)]
    assert [process.wait(60) for process in both] == [STALLED, STALLED]  # either may be the one that says why
    assert "'save of 15'" in read_verdict(attempt).message
    assert "slurm.watch.slow_minutes" in read_verdict(attempt).message


def test_a_call_in_c_that_holds_the_interpreter_leaves_its_stacks(attempt, rank):
    rank(1, BEAT.format(80), "b")
    hangs = rank(0, "ctypes.PyDLL(None).sleep(60)", lock=2)
    assert hangs.wait(60) == 1
    assert "worked_on" in stacks(attempt, 0)
    assert read_verdict(attempt) is None
    assert explain(attempt, "7").message.startswith("rank 0 hung in a call that never came back to Python; its stacks:")


STEPS = "while not job.pulse.paused: job.beat('step'); time.sleep(0.1)\n" + BEAT.format(5)
COLLECTIVE = """
c, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
def unlock(c=c, mutex=mutex):
    while not job.pulse.paused: time.sleep(0.1)
    time.sleep(0.5)
    c.pthread_mutex_unlock(mutex)
c.pthread_mutex_lock(mutex)
import threading; threading.Thread(target=unlock).start()
with job.slow("all-reduce"): c.pthread_mutex_lock(mutex)
"""
"""The main thread is in C, where it does not look at Python's signal handlers."""


@pytest.mark.slow
@pytest.mark.parametrize("work", [STEPS, COLLECTIVE], ids=["steps", "collective"])
def test_time_in_which_the_whole_process_stood_still_does_not_count(attempt, rank, work):
    """As after `scontrol suspend`, which stops all ranks."""
    said = "\nassert 8 < job.pulse.paused < 16, job.pulse.paused"  # once, and not twice
    both = [rank(number, MEET + work + said, "ab"[number], lock=5) for number in (0, 1)]
    while sum(entry.event != "start" for entry in read_roll(attempt / FOLDER / "start-1").values()) < 2:
        time.sleep(0.02)
    for process in both:
        process.send_signal(signal.SIGTSTP)
    time.sleep(1)
    for process in both:
        process.send_signal(signal.SIGSTOP)
    time.sleep(9)  # longer than the limit, and than that of the timer in C
    for process in both:
        process.send_signal(signal.SIGCONT)
    assert [process.wait(60) for process in both] == [0, 0]


FREEZE = """
def is_signed(rank, event):
    return f'"{event}"' in (roll / f"{rank}.json").read_text()
def wait_and_freeze(is_signed=is_signed):
    while not is_signed(0, "all-reduce"): job.beat("step"); time.sleep(0.02)
    job.beat("later than the other")
    while not is_signed(1, "later than the other"): time.sleep(0.01)
    time.sleep(0.02)  # so that the file is not half-written
    os.kill(os.getpid(), signal.SIGSTOP)
wait_and_freeze()
"""


def test_the_one_that_is_frozen_is_named_by_those_that_wait_for_it(attempt, rank):
    waits = rank(0, MEET + BEAT.format(8) + "\njob.beat('all-reduce'); time.sleep(60)")
    frozen = rank(1, MEET + FREEZE, "b")
    assert waits.wait(60) == STALLED
    assert frozen.poll() is None
    verdict = read_verdict(attempt)
    assert (verdict.why, verdict.rank, verdict.node) == ("error", 1, "b")
    assert "rank 1 on b hangs: its last event was 'later than the other'" in verdict.message
    assert "it is frozen or gone; rank 0 on a has waited" in verdict.message


def test_the_lowest_rank_that_is_there_names_the_missing_node_which_is_avoided(attempt, rank):
    waits = rank(1, BEAT.format(100), "b", seconds=2)
    assert waits.wait(30) == STALLED
    verdict = read_verdict(attempt)
    assert (verdict.why, verdict.rank, verdict.nodes) == ("node", 1, ("a",))
    assert "rank 0 on node a did not start within 0.0333333 minutes (slurm.watch.start_minutes)" in verdict.message
    assert list(excluded(attempt.parent.parent)) == ["a"]


def test_ranks_of_an_earlier_start_end_when_a_later_one_begins(attempt, rank):
    old = rank(1, BEAT.format(100), "b")
    roll = attempt / FOLDER / "start-1"
    while not (roll / "1.json").exists():
        time.sleep(0.02)
    roll.rename(roll.with_name(".start-1"))
    assert old.wait(20) == STALLED
    assert "was started again elsewhere: rank 1 of start-1 ends" in old.stdout.read()
