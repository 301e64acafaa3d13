"""Actors as local processes: in sessions of their own, found by their command lines, none of them a stage's job."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from slurm.actor import actors_place, leave, member_of
from slurm.actors import processes
from slurm.actors.arrays import Array, note, read_arrays
from slurm.actors.ask import add, end, end_by_hand, start_once
from slurm.actors.crew import none_left
from slurm.actors.tasks import living
from slurm.ask.share import local_cpus
from slurm.attempt import Request, open_attempt
from slurm.inside.place import supernode_of
from slurm.job import STOPPED
from slurm.record import Record
from slurm.verdict import Verdict, write_verdict
from slurm.wait import local
from workflow.config import load
from workflow.preflight import check_config
from workflow.request import make_request

ARRAY = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "125", "SLURM_ARRAY_JOB_ID": "123", "SLURM_ARRAY_TASK_ID": "4"}
RANK = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2"}


@pytest.fixture
def request_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = []

    def make(*overrides: str, cpus: int = 2) -> tuple[Request, Path, Record]:
        request = make_request(load(["rl.mode=asynchronous", "slurm.executor=local", *overrides]), "rl", cpus)
        request = request.model_copy(update={"inputs": {}})
        record = Record(
            stage="rl",
            fingerprint="f",
            number=1,
            executor="local",
            job_name="rl",
            host=os.uname().nodename,
            submitted=time.time(),
            job_id="7",
        )
        attempt = request.folder / record.attempt
        open_attempt(request, attempt, 1)
        made.append(attempt)
        return request, attempt, record

    yield make
    for attempt in made:
        end(attempt, lambda: True)


def test_local_actors_are_asked_for_once_and_look_like_no_stage(request_of):
    request, attempt, record = request_of()
    array = start_once(request, attempt, record, "7+0")
    assert array and array.job_id == "local"
    found = processes.processes(attempt, array)
    assert len(found) == 2
    assert all(os.getsid(process.pid) == process.pid for process in found)
    assert local.processes(attempt) == []
    assert start_once(request, attempt, record, "7+0") is None
    assert len(read_arrays(attempt)) == 1


def test_the_rest_of_a_half_started_array_is_started(request_of):
    request, attempt, record = request_of()
    array = start_once(request, attempt, record, "7+0")
    assert array
    first, second = processes.processes(attempt, array)
    first.suspend()  # so that it stays, though there are no learners
    second.kill()
    psutil.wait_procs([second], 10)
    text = (attempt / "actors/arrays.json").read_text()
    (attempt / "actors/arrays.json").write_text(text.replace('"job_id": "local"', '"job_id": null'))
    start_once(request, attempt, record, "7+0")
    now = processes.processes(attempt, array)
    assert len(now) == 2 and first in now and second not in now


def test_more_are_added_and_all_end(request_of):
    request, attempt, record = request_of("rl.asynchronous.evaluate_every=1")
    first = start_once(request, attempt, record, "7+0")
    more = add(request, attempt, record, 1)
    assert first and len(living(attempt, first)) == 3 and len(living(attempt, more)) == 1
    assert sum("evaluator" in process.cmdline() for process in processes.processes(attempt)) == 1
    assert len(end(attempt, lambda: True)) == 4
    gone = time.monotonic() + 30
    while processes.processes(attempt):
        assert time.monotonic() < gone
        time.sleep(0.05)
    assert all(array.over for array in read_arrays(attempt))


def test_an_actor_by_hand_is_ended_unless_it_is_of_a_slurm_job_which_happens_to_be_on_this_node(request_of):
    _, attempt, _ = request_of()
    (attempt / "actors").mkdir()
    command = [sys.executable, "-c", "import time; time.sleep(60)", "slurm.actor", str(attempt)]
    mine = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    ours, theirs = subprocess.Popen(command, env=mine), subprocess.Popen(command, env=mine | {"SLURM_JOB_ID": "7"})
    try:
        assert end(attempt, lambda: True) == [str(ours.pid)]
        assert ours.wait(10) != 0 and theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()


@pytest.fixture
def said_by_slurm(tmp_path, monkeypatch) -> Path:
    """Commands of a Slurm that knows no job; what scancel was told is in the file."""
    (tmp_path / "bin").mkdir()
    for name, does in (("squeue", "true"), ("sacct", "true"), ("scancel", f"echo $1 >> {tmp_path}/cancelled")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "cancelled"


def submitted(attempt: Path, job_id: str, actors: int) -> None:
    """An array that Qianka has submitted."""
    array = Array(
        number=1, actors=actors, evaluator=False, executor="slurm", name="a", host="", submitted=1.0, start="5+0",
        job_id=job_id,
    )  # fmt: skip
    (attempt / "actors").mkdir(exist_ok=True)
    note(attempt, array)


def test_of_an_array_that_a_person_has_submitted_those_tasks_alone_are_ended_that_play_for_the_run(
    request_of, said_by_slurm
):
    _, attempt, _ = request_of()
    submitted(attempt, "7", 2)
    members = [{"job": job} for job in ("7_0", "9_3", "9_1", "4711")]
    (attempt / "actors.json").write_text(json.dumps({"members": members}))
    assert end_by_hand(attempt) == ["9_1", "9_3"]
    assert said_by_slurm.read_text().split() == ["9_1", "9_3"]


def test_a_run_ends_when_its_own_actors_have_failed_and_not_when_those_of_a_person_have(request_of, said_by_slurm):
    _, attempt, _ = request_of()
    submitted(attempt, "7", 2)

    def fails(member: str) -> None:
        (attempt / "actors" / member).mkdir()
        place = actors_place(None, {**ARRAY, **RANK})
        write_verdict(attempt / "actors" / member, Verdict.of("error", f"{member} is broken", place))

    for member in ("9_0.0", "9_1.0", "7_0.0"):  # 7_1 was preempted for good
        fails(member)
    said, all_failed = none_left(attempt)
    assert said.startswith("no actor is left; the learners wait") and "9_1.0 is broken" in said and not all_failed
    fails("7_1.0")
    assert none_left(attempt) == ("has no actor left, for all 2 have failed; 7_1.0: 7_1.0 is broken", True)


def test_two_cores_have_one_learner_and_two_actors_on_a_thread_each(request_of):
    request, _, _ = request_of()
    assert local_cpus(request) == local_cpus(request, "actors") == 1
    assert local_cpus(request_of(cpus=9)[0]) == 3
    assert local_cpus(request_of("slurm.actors.cpus_per_task=4")[0], "actors") == 4


def test_an_actor_has_one_name_at_every_start_of_its_task():
    for restarts in ("0", "1"):
        place = actors_place(None, {**ARRAY, **RANK, "SLURM_RESTART_COUNT": restarts})
        assert (place.job_id, member_of(place), place.restarts) == ("123_4", "123_4.1", int(restarts))


@pytest.mark.parametrize("is_done", [True, False])
def test_an_actor_that_ends_because_its_run_is_done_has_not_failed_for_slurm(is_done, tmp_path):
    place = actors_place(None, {**ARRAY, **RANK})
    signals = SimpleNamespace(job=SimpleNamespace(stop_requested=True), ended=threading.Event())
    signals.ended.set()
    if is_done:
        (tmp_path / "manifest.json").touch()
    assert leave(signals, place, tmp_path, tmp_path, place) == (0 if is_done else STOPPED)


def test_a_rank_knows_its_supernode(request_of, tmp_path):
    (tmp_path / "site.yaml").write_text("cards: 8\nsupernodes:\n  - {name: s0, nodes: 'mx[0-1]'}\n")
    _, attempt, _ = request_of("slurm.topology=site.yaml")
    from slurm.attempt import read_job_file

    job_file = read_job_file(attempt)
    assert supernode_of(job_file, "mx1") == "s0" and supernode_of(job_file, "login") == ""


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("engine.name=vllm_server", "engine.name is vllm_server, but in asynchronous mode each actor"),
        ("slurm.actors.nodes=2", "slurm.actors.nodes is 2, but without Slurm there is one"),
        ("slurm.actors.shard_ranks=1", "slurm.actors.shard_ranks: actors hold whole copies"),
    ],
)
def test_what_asynchronous_mode_cannot_have_is_refused(override, said, monkeypatch):
    monkeypatch.setattr("workflow.preflight.check_engine", lambda run: None)
    with pytest.raises(ValueError, match=said):
        check_config(load(["rl.mode=asynchronous", "slurm.executor=local", override]))


def test_to_keep_what_is_stale_takes_an_algorithm_that_corrects_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keep = ["rl.mode=asynchronous", "slurm.executor=local", "rl.asynchronous.stale=keep"]
    check_config(load(keep))
    from stages.algorithms.spec import find_algorithm

    # Only its metric of the KL divergence compares with the policy that played.
    text, takes = find_algorithm("dr_grpo").read_text(), "{new: policy.logprobs, old: rollout_logprobs}"
    text = text.replace(
        f"importance_ratio, takes: {takes}", "importance_ratio, takes: {new: policy.logprobs, old: policy.logprobs}"
    )
    assert text.count("rollout_logprobs") == 1
    Path("mine.yaml").write_text(text)
    with pytest.raises(ValueError, match="has no ratio to rollout_logprobs"):
        check_config(load([*keep, "rl.algorithm=mine.yaml"]))
