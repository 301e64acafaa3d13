"""The actors of an rl job on the real cluster: asked for once, whatever is killed, more on demand, none left behind."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm.actors.arrays import folder_of_member, read_arrays
from slurm.actors.ask import add, end, start_once
from slurm.actors.crew import failures, none_left
from slurm.actors.tasks import living
from slurm.attempt import Request, open_attempt
from slurm.config import SlurmConfig
from slurm.query.queue import QueueFull
from slurm.record import Record
from tests.cluster.conftest import wait_for
from workflow.config import load
from workflow.request import make_request

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def request_of(tmp_path, monkeypatch) -> Callable[..., Request]:
    monkeypatch.chdir(tmp_path)

    def make(*overrides: str, **actors: object) -> Request:
        request = make_request(load(["rl.mode=asynchronous", "slurm.executor=slurm", *overrides]), "rl", 1)
        site = SlurmConfig.model_validate({"executor": "slurm", "actors": actors})
        return request.model_copy(update={"slurm": site, "inputs": {}})

    return make


def opened(request: Request, job_id: str) -> tuple[Path, Record]:
    record = Record(
        stage="rl",
        fingerprint="f",
        number=1,
        executor="slurm",
        job_name="rl",
        host=os.uname().nodename,
        submitted=time.time(),
        job_id=job_id,
    )
    attempt = request.folder / record.attempt
    open_attempt(request, attempt, 1)
    return attempt, record


def arrays_called(cluster, name: str) -> set[str]:
    queued = cluster.run("squeue", "-h", "--states=all", "-o", "%F", f"--name={name}").split()
    ended = cluster.run("sacct", "-n", "-X", "-P", "-o", "JobID", "--starttime=now-1hour", f"--name={name}").split()
    return {*queued, *(job.partition("_")[0] for job in ended)}


def test_actors_are_asked_for_once_and_wait_for_the_rl_job(cluster, request_of):
    rl = cluster.submit("sleep 600", "--begin=now+1hour")
    request = request_of(count=3)
    attempt, record = opened(request, rl)
    array = start_once(request, attempt, record, f"{rl}+0")
    assert array and start_once(request, attempt, record, f"{rl}+0") is None
    assert [task.job for task in living(attempt, array)] == [f"{array.job_id}_{task}" for task in (0, 1, 2)]
    assert f"after:{rl}" in cluster.run("scontrol", "show", "job", "-o", f"{array.job_id}_0")
    assert arrays_called(cluster, array.name) == {array.job_id}
    assert end(attempt) == [array.job_id]
    wait_for(lambda: not living(attempt, array), "the array ends")


def test_a_requeued_rl_job_keeps_its_actors_and_one_that_has_none_left_gets_them_anew(cluster, request_of):
    rl = cluster.submit("sleep 600", "--begin=now+1hour")
    request = request_of(count=2)
    attempt, record = opened(request, rl)
    first = start_once(request, attempt, record, f"{rl}+0")
    assert first and start_once(request, attempt, record, f"{rl}+1") is None
    assert [array.job_id for array in read_arrays(attempt)] == [first.job_id]
    cluster.run("scancel", first.job_id)
    wait_for(lambda: not living(attempt, first), "the array ends")
    second = start_once(request, attempt, record, f"{rl}+2")
    assert second and second.job_id != first.job_id and len(living(attempt, second)) == 2


def test_a_submitter_killed_before_the_note_leaves_one_array_none_of_whose_tasks_is_missing(
    cluster, request_of, tmp_path, monkeypatch
):
    """sbatch itself kills the process that called it, at the worst moment."""
    rl = cluster.submit("sleep 600", "--begin=now+1hour")
    request = request_of(count=3)
    attempt, record = opened(request, rl)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sbatch").write_text(f'#!/bin/bash\n{shutil.which("sbatch")} "$@"\nkill -9 $PPID\n')
    (tmp_path / "bin/sbatch").chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        start_once(request, attempt, record, f"{rl}+0")
    (intent,) = read_arrays(attempt)
    assert intent.job_id is None
    wait_for(lambda: len(arrays_called(cluster, intent.name)) == 1, "the array is in the queue")

    assert start_once(request, attempt, record, f"{rl}+0") is None
    (array,) = read_arrays(attempt)
    assert arrays_called(cluster, array.name) == {array.job_id}
    assert len(living(attempt, array)) == 3
    names = {path.name for path in (attempt / "actors/log").glob("*_submitted.pkl")}
    assert names == {f"{array.job_id}_{task}_submitted.pkl" for task in range(3)}


def test_a_submitter_killed_before_the_submit_is_made_up_for(cluster, request_of, tmp_path, monkeypatch):
    rl = cluster.submit("sleep 600", "--begin=now+1hour")
    request = request_of(count=2)
    attempt, record = opened(request, rl)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sbatch").write_text("#!/bin/bash\nkill -9 $PPID\n")
    (tmp_path / "bin/sbatch").chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        start_once(request, attempt, record, f"{rl}+0")
    assert start_once(request, attempt, record, f"{rl}+0")
    (array,) = read_arrays(attempt)
    assert len(living(attempt, array)) == 2


def test_more_actors_come_on_demand_and_end_with_the_others(cluster, request_of):
    rl = cluster.submit("sleep 600", "--begin=now+1hour")
    request = request_of("rl.asynchronous.evaluate_every=2", count=1)
    attempt, record = opened(request, rl)
    first = start_once(request, attempt, record, f"{rl}+0")
    cluster.submit("sleep 60", "--exclusive", "--nodes=4")  # what is added waits for no rl job, but here for nodes
    more = add(request, attempt, record, 4)
    assert first and first.evaluator and len(living(attempt, first)) == 2
    assert more.actors == 4 and not more.evaluator
    assert set(end(attempt)) == {first.job_id, more.job_id}
    wait_for(lambda: not living(attempt, first) and not living(attempt, more), "the arrays end")


def test_actors_that_come_after_the_end_go_home_and_one_that_fails_says_why(cluster, request_of):
    request = request_of(count=2)
    attempt, record = opened(request, "")
    (attempt / "manifest.json").write_text("{}")
    late = add(request, attempt, record, 2)
    wait_for(lambda: not living(attempt, late), "the actors that are late end")
    assert failures(attempt) == {}

    (attempt / "manifest.json").unlink()
    (attempt / "job.json").write_text("{}")
    lost = add(request, attempt, record, 1)
    wait_for(lambda: not living(attempt, lost), "the actor fails")
    member = f"{lost.job_id}.0"
    assert folder_of_member(attempt, member).is_dir()
    assert not list(attempt.glob("verdict-*.json"))  # which would be the end of the rl job
    assert "job.json is damaged" in failures(attempt)[member]
    said, all_failed = none_left(attempt)
    assert said.startswith("no actor is left; the learners wait") and not all_failed  # two went home in peace
    assert f"{member}: {failures(attempt)[member]}" in said


def test_actors_submitted_by_hand_find_the_attempt(cluster, request_of, tmp_path):
    from slurm.record import write_record

    request = request_of(count=2)
    attempt, record = opened(request, "")
    write_record(request.folder, record)
    (attempt / "manifest.json").write_text("{}")
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    script = ROOT / "slurm/sbatch/actors.sbatch"
    job = cluster.run("sbatch", "--parsable", "--array=0-1", script, request.run_folder)
    for task in (0, 1):
        cluster.wait(f"{job}_{task}", "COMPLETED", seconds=120)
        assert "is done; there is nothing to play" in (tmp_path / f"qianka-actors-{job}_{task}.out").read_text()


def test_a_full_queue_is_tried_again(cluster, request_of, tmp_path, monkeypatch):
    request = request_of(count=2)
    attempt, record = opened(request, "1")
    (tmp_path / "bin").mkdir()
    said = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
    (tmp_path / "bin/sbatch").write_text(f"#!/bin/bash\necho '{said}' >&2\nexit 1\n")
    (tmp_path / "bin/sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(QueueFull, match="accounting/QOS policy"):
        start_once(request, attempt, record, "1+0")
