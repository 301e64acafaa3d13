"""A stage on Slurm, played by a fake at the process boundary: one job an attempt, whatever happens around it."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from checkpoints.manifest import NAME
from slurm.ask import submit
from slurm.claim import submit_or_attach, take_over
from slurm.config import ResourcesConfig, SlurmConfig
from slurm.query.queue import NoAnswer, QueueFull, SubmitError
from slurm.record import accept, read_record, write_record
from slurm.wait import local
from slurm.wait.attach import Waiter, failure
from slurm.wait.display import Display
from slurm.wait.judge import ENDED_SECONDS, End

ON_SLURM = SlurmConfig(executor="slurm")


@pytest.fixture
def jobs(tmp_path, fake_slurm, monkeypatch):
    """All jobs that were ever submitted, by id."""

    monkeypatch.setitem(ENDED_SECONDS, "slurm", 2.0)

    def read() -> list[dict]:
        return [json.loads(path.read_text()) for path in sorted((tmp_path / "slurm").glob("[0-9]*.json"))]

    return read


@pytest.fixture
def wait_for(tmp_path):
    def wait(attached) -> End:
        with Display("synth", tmp_path / "terminal.log") as display:
            return Waiter(attached, display, []).wait()

    return wait


def test_a_stage_is_submitted_and_waited_for(request_for, jobs, wait_for, tmp_path):
    attached = submit_or_attach(request_for(slurm=ON_SLURM))
    assert attached.how == "submitted"
    assert wait_for(attached) is End.FINISHED
    assert len(jobs()) == 1
    assert (attached.folder / "log").stat().st_mode & 0o777 == 0o700
    assert f"job {attached.record.job_id} runs" in (tmp_path / "terminal.log").read_text()


def test_two_ranks_make_one_result(request_for, jobs, wait_for):
    site = SlurmConfig(executor="slurm", synth=ResourcesConfig(nodes=1, tasks_per_node=2))
    attached = submit_or_attach(request_for(slurm=site))
    assert wait_for(attached) is End.FINISHED
    assert {path.name for path in (attached.folder / "log").glob("*.out")} == {"1000_0_log.out", "1000_1_log.out"}


def test_a_second_call_attaches_to_the_job_that_waits(request_for, jobs, knob):
    knob("held")
    first, second = (submit_or_attach(request_for(slurm=ON_SLURM)) for _ in range(2))
    assert (first.record.job_id, first.folder) == (second.record.job_id, second.folder)
    assert second.how == "re-attached"
    assert len(jobs()) == 1


def test_a_job_whose_submitter_was_killed_before_the_note_is_found_by_its_name(request_for, jobs, knob):
    knob("held")
    request = request_for(slurm=ON_SLURM)
    noted = submit_or_attach(request).record
    write_record(request.folder, noted.model_copy(update={"job_id": None}))
    again = submit_or_attach(request)
    assert again.record.job_id == noted.job_id
    assert again.how == "re-attached"
    assert len(jobs()) == 1


def test_nothing_is_submitted_while_slurm_cannot_say_whether_there_is_a_job(request_for, jobs, knob):
    knob("held")
    request = request_for(slurm=ON_SLURM)
    noted = submit_or_attach(request).record
    write_record(request.folder, noted.model_copy(update={"job_id": None}))
    knob("squeue.down")
    with pytest.raises(NoAnswer, match=rf"{noted.job_name}.*record\.json"):
        submit_or_attach(request)
    assert len(jobs()) == 1


def test_a_job_stays_the_one_while_no_query_is_answered(request_for, jobs, knob):
    knob("held")
    submit_or_attach(request_for(slurm=ON_SLURM))
    knob("squeue.down")
    knob("sacct.down")
    assert submit_or_attach(request_for(slurm=ON_SLURM)).how == "re-attached"
    assert len(jobs()) == 1


def test_a_result_is_found_with_no_accounting_and_a_forgetful_queue(request_for, jobs, knob, wait_for):
    knob("sacct.down")
    knob("forget")
    request = request_for(slurm=ON_SLURM)
    assert wait_for(submit_or_attach(request)) is End.FINISHED
    assert submit_or_attach(request).how == "found finished"
    assert len(jobs()) == 1


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED", "REQUEUED"])
def test_a_job_that_the_cluster_starts_again_is_waited_for(request_for, jobs, knob, wait_for, fake_slurm, state):
    held = knob("held")
    attached = submit_or_attach(request_for(slurm=ON_SLURM))
    fake_slurm.save({**jobs()[0], "state": state})
    assert submit_or_attach(request_for(slurm=ON_SLURM)).how == "re-attached"
    held.unlink()
    fake_slurm.save({**jobs()[0], "state": "PENDING", "restarts": 1})
    fake_slurm.start(attached.record.job_id)
    assert wait_for(attached) is End.FINISHED
    assert len(jobs()) == 1


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED"])
def test_a_lost_job_that_does_not_come_back_has_a_successor(
    request_for, jobs, knob, wait_for, fake_slurm, monkeypatch, state
):
    monkeypatch.setattr("slurm.wait.judge.FINAL_SECONDS", 1.0)
    knob("held")
    attached = submit_or_attach(request_for(slurm=ON_SLURM))
    fake_slurm.save({**jobs()[0], "state": state})
    assert wait_for(attached) is End.AGAIN
    successor = submit_or_attach(request_for(slurm=ON_SLURM), attached)
    assert (successor.how, len(jobs())) == ("resumed", 2)


def test_after_the_time_limit_the_same_attempt_is_resumed_by_a_new_job(request_for, jobs, knob, wait_for, fake_slurm):
    held = knob("held")
    first = submit_or_attach(request_for(slurm=ON_SLURM))
    fake_slurm.save({**jobs()[0], "state": "TIMEOUT"})
    assert wait_for(first) is End.AGAIN
    held.unlink()
    second = submit_or_attach(request_for(slurm=ON_SLURM))
    assert (second.how, second.folder) == ("resumed", first.folder)
    assert wait_for(second) is End.FINISHED
    assert len(jobs()) == 2


def test_the_signal_before_the_time_limit_requeues_the_same_job(request_for, jobs, wait_for, fake_slurm):
    attached = submit_or_attach(request_for("synth.num_tasks=20000", "synth.block_tasks=200", slurm=ON_SLURM))
    started = attached.folder / "progress.json"
    while not started.exists():
        time.sleep(0.05)
    rank = next(p for p in local.processes(attached.folder) if "srun" not in p.cmdline())
    rank.send_signal(signal.SIGUSR2)
    assert wait_for(attached) is End.FINISHED
    assert [job["restarts"] for job in jobs()] == [1]


def test_a_taken_result_that_is_asked_for_again_is_a_new_attempt(request_for, jobs, wait_for):
    request = request_for(slurm=ON_SLURM)
    first = submit_or_attach(request)
    assert wait_for(first) is End.FINISHED
    (request.folder / NAME).write_bytes((first.folder / NAME).read_bytes())
    accept(request.folder)
    second = submit_or_attach(request)
    assert (second.how, second.folder.name) == ("submitted", first.folder.name.replace("-1", "-2"))


def test_a_job_of_another_config_is_ended_first(request_for, jobs, knob):
    knob("held")
    submit_or_attach(request_for(slurm=ON_SLURM))
    other = submit_or_attach(request_for("seed=5", slurm=ON_SLURM))
    assert [job["state"] for job in jobs()] == ["CANCELLED", "PENDING"]
    assert other.how == "submitted"


def test_the_environment_of_a_job_around_us_does_not_leak(request_for, jobs, knob, monkeypatch):
    knob("held")
    for name in ("SLURM_CPU_BIND", "SLURM_JOB_ID", "SLURM_NTASKS", "SRUN_CPUS_PER_TASK"):
        monkeypatch.setenv(name, "1")
    submit_or_attach(request_for(slurm=ON_SLURM))
    (job,) = jobs()
    assert job["leaked"] == ["SLURM_CONF"]
    assert job["conf"] == os.environ["SLURM_CONF"]
    assert os.environ["SLURM_CPU_BIND"] == "1"


def test_a_refused_submit_says_what_sbatch_said_and_can_be_repeated(request_for, jobs, tmp_path):
    good = (tmp_path / "bin" / "sbatch").read_text()
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho 'Invalid partition name specified' >&2; exit 1\n")
    with pytest.raises(SubmitError, match="Invalid partition"):
        submit_or_attach(request_for(slurm=ON_SLURM))
    (tmp_path / "bin" / "sbatch").write_text(good)
    assert submit_or_attach(request_for(slurm=ON_SLURM)).how == "resumed"
    assert len(jobs()) == 1


def test_a_kill_between_submit_and_note_leaves_the_note_to_be_made(request_for, jobs, knob, monkeypatch):
    """The child that submits is killed at the worst moment: sbatch has returned, nothing is written."""
    knob("held")
    real = submit.submit_to_slurm

    def killed(*arguments):
        real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(submit, "submit_to_slurm", killed)
    request = request_for(slurm=ON_SLURM)
    with pytest.raises(QueueFull, match="killed before it had noted"):
        submit_or_attach(request)
    assert len(jobs()) == 1
    monkeypatch.setattr(submit, "submit_to_slurm", real)
    assert submit_or_attach(request).record.job_id == jobs()[0]["id"]
    assert len(jobs()) == 1


def test_a_job_whose_submitter_was_killed_inside_submitit_runs_all_the_same(
    request_for, jobs, wait_for, knob, fake_slurm
):
    """submitit names the pickle after the job once sbatch has returned."""
    held = knob("held")
    request = request_for(slurm=ON_SLURM)
    attached = submit_or_attach(request)
    logs = attached.folder / "log"
    (logs / "1000_submitted.pkl").rename(logs / f"{'0' * 32}.pkl")
    write_record(request.folder, attached.record.model_copy(update={"job_id": None}))
    held.unlink()
    fake_slurm.start("1000")
    assert wait_for(submit_or_attach(request)) is End.FINISHED
    assert len(jobs()) == 1


def test_ranks_that_go_on_after_one_has_failed_are_ended(request_for, jobs, knob, wait_for, fake_slurm, monkeypatch):
    monkeypatch.setattr("slurm.wait.judge.STRAGGLER_SECONDS", {"mistake": 0.5, "error": 0.5})
    knob("held")
    attached = submit_or_attach(request_for(slurm=ON_SLURM))
    fake_slurm.save({**jobs()[0], "state": "RUNNING"})
    why = {"why": "error", "message": "no card", "rank": 3, "node": "mx1", "job_id": "1000", "time": 1, "traceback": ""}
    (attached.folder / "verdict-0003.json").write_text(json.dumps(why))
    assert wait_for(attached) is End.FAILED
    assert jobs()[0]["state"] == "CANCELLED"
    assert "failed on rank 3 (mx1, job 1000): no card" in failure(attached, "")


def test_a_job_that_waits_for_its_next_start_is_not_ended_for_what_the_last_one_said(
    request_for, jobs, knob, wait_for, fake_slurm, monkeypatch
):
    monkeypatch.setattr("slurm.wait.judge.STRAGGLER_SECONDS", {"mistake": 0.3, "error": 0.3})
    held = knob("held")
    attached = submit_or_attach(request_for(slurm=ON_SLURM))
    why = {"why": "error", "message": "peer gone", "rank": 0, "node": "mx1", "job_id": "1", "time": 1, "traceback": ""}
    (attached.folder / "verdict-0000.json").write_text(json.dumps(why))

    def start_again() -> None:
        (attached.folder / "verdict-0000.json").unlink()
        held.unlink()
        fake_slurm.start(attached.record.job_id)

    threading.Timer(3, start_again).start()
    assert wait_for(attached) is End.FINISHED


def test_a_job_that_somebody_cancelled_has_no_successor(request_for, jobs, knob, wait_for, fake_slurm):
    knob("held")
    attached = submit_or_attach(request_for(slurm=ON_SLURM))
    why = {"why": "stopped", "message": "step 3", "rank": 0, "node": "mx1", "job_id": "1", "time": 1, "traceback": ""}
    (attached.folder / "verdict-0000.json").write_text(json.dumps(why))
    fake_slurm.save({**jobs()[0], "state": "CANCELLED by 1000"})
    assert wait_for(attached) is End.FAILED


def test_ctrl_c_cancels_the_job(request_for, jobs, knob, stage_command):
    knob("held")
    command = stage_command("slurm.executor=slurm")
    while "job 1000" not in command.stdout.readline():
        pass
    command.send_signal(signal.SIGINT)
    output = command.communicate()[0]
    assert (command.returncode, jobs()[0]["state"]) == (130, "CANCELLED"), output


def test_a_script_by_hand_is_known_to_whoever_comes_later(request_for, jobs, knob, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NAME", "x")
    request = request_for(slurm=ON_SLURM)
    mine = take_over(request, "77")
    assert read_record(request.folder).job_id == "77"
    assert take_over(request, "77").folder == mine.folder
    Path(os.environ["FAKE_SLURM"], "77.json").write_text(
        json.dumps({"id": "77", "name": "x", "state": "RUNNING", "reason": "None"})
    )
    assert submit_or_attach(request).record.job_id == "77"
    monkeypatch.delenv("SLURM_JOB_NAME")
    with pytest.raises(ValueError, match="job 77 works on this already"):
        take_over(request, "78")


def test_a_requeued_script_goes_on_with_its_attempt_though_its_config_was_edited(request_for, jobs, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NAME", "x")
    mine = take_over(request_for(slurm=ON_SLURM), "77")
    running = {"id": "77", "name": "x", "state": "RUNNING", "reason": "None"}
    Path(os.environ["FAKE_SLURM"], "77.json").write_text(json.dumps(running))
    assert take_over(request_for("seed=5", slurm=ON_SLURM), "77").folder == mine.folder
    assert [job["state"] for job in jobs()] == ["RUNNING"], "it has cancelled itself"


def test_the_result_of_a_job_that_ended_well_is_waited_for_and_not_made_again(request_for, knob, fake_slurm, jobs):
    """Another machine's file is seen late."""
    knob("held")
    request = request_for(slurm=ON_SLURM)
    attached = submit_or_attach(request)
    fake_slurm.save({**jobs()[0], "state": "COMPLETED"})
    threading.Timer(1.5, (attached.folder / NAME).touch).start()
    assert submit_or_attach(request).how == "found finished"
    assert len(jobs()) == 1


def test_a_job_that_ended_well_without_a_result_has_a_successor(request_for, knob, fake_slurm, jobs, monkeypatch):
    monkeypatch.setattr("slurm.claim.RESULT_SECONDS", 1.0)
    knob("held")
    request = request_for(slurm=ON_SLURM)
    submit_or_attach(request)
    fake_slurm.save({**jobs()[0], "state": "COMPLETED"})
    assert submit_or_attach(request).how == "resumed"
    assert len(jobs()) == 2


def test_a_script_that_is_requeued_after_its_result_was_taken_makes_no_new_one(request_for, jobs, monkeypatch):
    request = request_for(slurm=ON_SLURM)
    mine = take_over(request, "77")
    write_record(request.folder, mine.record.model_copy(update={"accepted": True}))
    assert take_over(request, "77").record.number == 2, "it asks again within one start, as in a shell of salloc"
    write_record(request.folder, mine.record.model_copy(update={"accepted": True}))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert take_over(request, "77").folder == mine.folder
    assert take_over(request_for("seed=5", slurm=ON_SLURM), "77").folder != mine.folder


def test_what_a_script_reads_is_the_folder_alone(request_for, jobs, knob, capsys):
    knob("held")
    submit_or_attach(request_for(slurm=ON_SLURM))
    take_over(request_for("seed=5", slurm=ON_SLURM), "77")
    said = capsys.readouterr()
    assert said.out == "" and "ending job 1000" in said.err
