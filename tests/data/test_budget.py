"""When a stage has to stop so that its last save is done in time."""

import re
import time

import pytest

from data.budget import FILE, MARGIN_SECONDS, MAX_STARTS, Budget
from data.job import Job


def job_with(seconds, **changed):
    return Job(ends_at=time.time() + seconds, **changed)


def spend(budget, steps, seconds, save=0.0):
    """What the budget says after each of the steps, of which the last is saved."""
    said = []
    for _ in budget.measured(range(steps)):
        time.sleep(seconds)
        said.append(budget.must_stop())
    if save:
        with budget.save("the last"):
            time.sleep(save)
    return said


def test_nothing_ends_a_job_without_an_end(tmp_path):
    assert spend(Budget(Job(), tmp_path, "sft"), 3, 0.0) == [False] * 3
    assert not (tmp_path / FILE).exists()


def test_it_is_spent_when_one_more_step_and_its_save_do_not_fit(tmp_path):
    budget = Budget(job_with(MARGIN_SECONDS + 600), tmp_path, "sft")
    assert spend(budget, 2, 0.05, save=0.3) == [False, False]
    budget.ends_at = time.time() + MARGIN_SECONDS + 0.2
    assert budget.must_stop()
    step, save = map(float, re.search(r"a step takes up to ([\d.]+) s and a save ([\d.]+) s", budget.why()).groups())
    assert step < 60 and 0.3 <= save < 60


def test_a_later_start_knows_the_save_before_its_first(tmp_path):
    spend(Budget(job_with(1000), tmp_path, "sft"), 1, 0.0, save=0.3)
    assert Budget(job_with(MARGIN_SECONDS + 0.2), tmp_path, "sft").must_stop()
    assert not Budget(job_with(MARGIN_SECONDS + 60), tmp_path, "sft").must_stop()


def test_the_first_step_compiles_and_tells_nothing_of_the_others(tmp_path):
    budget = Budget(job_with(MARGIN_SECONDS + 600), tmp_path, "sft")
    for index in budget.measured(range(3)):
        time.sleep(0 if index else 1.0)
        if index:
            budget.ends_at = time.time() + MARGIN_SECONDS + 0.9  # less than the first one took
            assert not budget.must_stop()


def test_an_end_that_was_moved_is_asked_for_before_the_job_stops_for_it(tmp_path):
    ends = iter([time.time() + 1000])
    assert not Budget(job_with(1, find_end=lambda: next(ends)), tmp_path, "sft").must_stop()
    assert Budget(job_with(1), tmp_path, "sft").must_stop()  # nobody knows of another one


def test_an_end_that_came_nearer_is_noticed(tmp_path, monkeypatch):
    budget = Budget(job_with(1000, find_end=lambda: time.time() + 1), tmp_path, "sft")
    assert not budget.must_stop()
    monkeypatch.setattr("data.budget.ASK_SECONDS", 0.0)
    assert budget.must_stop()


def test_only_the_first_rank_looks_at_the_clock_and_all_hear_signals(tmp_path):
    job = job_with(0, rank=1, world_size=2)
    budget = Budget(job, tmp_path, "sft")
    assert not budget.must_stop()
    job.stop.set()
    assert budget.must_stop()
    assert budget.why() == "asked to stop"


def test_starts_that_run_out_of_time_before_they_commit_are_an_error_that_says_what_to_set(tmp_path):
    spend(Budget(job_with(0.01), tmp_path, "sft"), 2, 0.01, save=0.02)  # this one committed
    for _ in range(MAX_STARTS):
        Budget(job_with(0.01), tmp_path, "sft")
        time.sleep(0.02)
    with pytest.raises(ValueError, match=r"sft: 3 starts in a row .* slurm\.sft\.minutes=1$"):
        Budget(job_with(0.01), tmp_path, "sft")


def test_a_start_that_was_ended_early_is_no_start_in_vain(tmp_path):
    for _ in range(2 * MAX_STARTS):
        Budget(job_with(1000), tmp_path, "sft")


def test_the_watchdog_hears_of_steps_and_of_the_end_of_the_first(tmp_path):
    job, seen = Job(), []
    budget = Budget(job, tmp_path, "sft")
    for _ in budget.measured(range(2), "step {}".format):
        seen.append((job.pulse.event, job.pulse.is_slow))
    with budget.save(2):
        seen.append((job.pulse.event, job.pulse.is_slow))
    assert seen == [("step 0", True), ("step 1", False), ("save of 2", True)]


def test_time_in_which_the_job_was_suspended_is_no_part_of_a_step(tmp_path):
    job = job_with(MARGIN_SECONDS + 1000)
    budget = Budget(job, tmp_path, "sft")
    for index in budget.measured(range(3)):
        if index == 1:
            began = time.monotonic()
            time.sleep(0.5)
            job.pulse.paused += time.monotonic() - began
    budget.spent = True
    assert "a step takes up to 0.0 s" in budget.why()
