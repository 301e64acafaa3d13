"""Inside the job: what is checked before the stage starts, and how a rank's end is told."""

import json
import logging
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from checkpoints.manifest import NAME, commit_manifest
from slurm import attempt as attempt_folder
from slurm import job
from slurm.claim import take_over
from slurm.exclusions import exclude, excluded
from slurm.job import FAILED, check_packages, run_stage
from slurm.lock import hold, let_go, locked
from slurm.record import read_record
from slurm.verdict import BadNode, Verdict, explain, read_verdict, write_verdict
from workflow.config import load
from workflow.request import make_request


@pytest.fixture
def attempt(request_for):
    return take_over(request_for(), None).folder


def test_a_stage_that_runs_commits_its_manifest(attempt):
    assert subprocess.run([sys.executable, "-P", "-m", "slurm.job", attempt]).returncode == 0
    assert (attempt / NAME).exists()
    assert read_verdict(attempt) is None


def test_a_finished_attempt_is_not_run_again(attempt, monkeypatch):
    (attempt / NAME).write_text("{}")
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(name))
    assert run_stage(attempt) == 0


def test_a_mistake_is_told_without_a_traceback(attempt, capsys):
    provenance = json.loads((attempt / "attempt.json").read_text())
    provenance["config"]["synth"]["workers"] = "many"
    (attempt / "attempt.json").write_text(json.dumps(provenance))
    assert run_stage(attempt) == FAILED
    verdict = read_verdict(attempt)
    assert (verdict.why, verdict.rank) == ("mistake", 0)
    assert "workers" in verdict.message
    assert "Traceback" in verdict.traceback
    assert "Traceback" not in "".join(capsys.readouterr())


def test_an_input_that_is_missing_stops_the_job_before_the_stage(tmp_path, attempt):
    path = attempt / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "inputs": {"sft": "../../sft/manifest.json"}}))
    assert run_stage(attempt) == FAILED
    assert "no such manifest" in read_verdict(attempt).message


def test_an_input_that_changed_since_stops_every_rank(request_for, attempt, monkeypatch):
    assert subprocess.run([sys.executable, "-P", "-m", "slurm.job", attempt]).returncode == 0
    synth = attempt.parent / NAME
    synth.write_bytes((attempt / NAME).read_bytes())
    sft = make_request(load([]), "sft", 1)
    sft.folder.mkdir()
    folder = take_over(sft, None).folder
    synth.write_text(synth.read_text() + "\n")
    assert run_stage(folder) == FAILED
    assert "the result of synth changed" in read_verdict(folder).message
    in_slurm(monkeypatch, PROCID="1", STEP_NUM_TASKS="2")  # each rank looks, since each may see another file
    assert run_stage(folder) == FAILED
    assert read_verdict(folder).message.startswith("sft: the result of synth changed")
    assert len(list(folder.glob("verdict-*.json"))) == 2


SLURM = {"JOB_ID": "42", "STEP_ID": "0", "PROCID": "0", "LOCALID": "0", "STEP_NUM_TASKS": "1"}


def in_slurm(monkeypatch, **changed):
    for name, value in (SLURM | changed).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", "mx1")


def run_with(monkeypatch, work):
    """`run_stage` with other work than the stage's."""
    monkeypatch.setattr(job, "_run", lambda job_file, attempt, place_of_work: work())


def test_nodes_that_are_to_blame_are_avoided_from_then_on(attempt, monkeypatch, capsys):
    def work():
        raise BadNode(("mx3",), "mx3: a card is gone")

    run_with(monkeypatch, work)
    assert run_stage(attempt) == FAILED
    assert excluded(attempt.parents[1])["mx3"].reason == "mx3: a card is gone"
    assert (read_verdict(attempt).why, read_verdict(attempt).nodes) == ("node", ("mx3",))
    assert "error: mx3: a card is gone" in capsys.readouterr().out


def test_a_place_that_cannot_be_read_is_told_too(attempt, monkeypatch):
    in_slurm(monkeypatch, PROCID="3", STEP_NODELIST="mx[0-1]", STEP_TASKS_PER_NODE="1(x3)")
    assert run_stage(attempt) == FAILED
    verdict = read_verdict(attempt)
    assert (verdict.why, verdict.rank, verdict.node, verdict.job_id) == ("mistake", 3, "mx1", "42")
    assert "the step has 3 nodes (1(x3) tasks) and names others: mx[0-1]" in verdict.message
    in_slurm(monkeypatch, PROCID="3", HET_SIZE="2")
    assert run_stage(attempt) == FAILED
    assert "job 42 is a heterogeneous one" in read_verdict(attempt).message


def test_a_rank_may_open_as_many_files_as_the_node_allows(attempt, monkeypatch):
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        run_with(monkeypatch, lambda: None)
        assert run_stage(attempt) == 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, job.OPEN_FILES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def test_what_a_module_logs_is_a_line_of_the_jobs_log_and_a_librarys_note_is_not(attempt, monkeypatch, capsys):
    def work():
        logging.getLogger("stages.rollout.torch.compiler").info("compiling took %.1f s", 2)
        logging.getLogger("stages.rl.rollouts").warning("row 7 is left out")
        logging.getLogger("transformers").info("loading")

    run_with(monkeypatch, work)
    assert run_stage(attempt) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["compiling took 2.0 s", "warning: row 7 is left out"]


def test_a_job_does_not_start_on_a_node_that_is_avoided_and_does_not_prolong_that(attempt, monkeypatch):
    exclude(attempt.parents[1], ["mx1"], "ECC errors", 1)
    before = excluded(attempt.parents[1])
    in_slurm(monkeypatch)
    run_with(monkeypatch, lambda: pytest.fail("it started"))
    assert run_stage(attempt) == FAILED
    assert "(ECC errors); submit with --exclude=mx1" in read_verdict(attempt).message
    assert excluded(attempt.parents[1]) == before


KILLED = """\
synth: abc-1 on 2 rank(s), job 7
slurmstepd-mx0: error: *** STEP 7.0 ON mx0 CANCELLED AT 2026-11-29T20:12:27 DUE TO JOB REQUEUE ***
srun: error: mx0: task 0: Killed
synth: abc-1 on 2 rank(s), weights sharded over 2 of them, job 7, start 2
RuntimeError: Connection reset by peer
"""


@pytest.mark.parametrize(
    ("srun", "said"),
    [
        ("srun: error: mx1: task 1: Killed", "rank 1 on mx1 was killed: by a person, or by the kernel"),
        ("srun: error: mx[2-3]: tasks 5-6: Out Of Memory", "rank 5 on mx2 was killed because it was out of the memory"),
        ("srun: error: mx1: task 1: Segmentation fault", "rank 1 on mx1 was ended by a signal: Segmentation fault"),
        ("srun: error: mx1: task 1: Exited with exit code 70\nsrun: error: mx0: task 0: Killed", "Connection reset"),
        ("slurmstepd-mx0: error: *** STEP 7.0 CANCELLED ***\nsrun: error: mx0: task 0: Killed", "Connection reset"),
        ("", "Connection reset"),
    ],
)
def test_a_rank_that_was_killed_is_named_because_it_cannot_say_so_itself(tmp_path, srun, said):
    (tmp_path / "log").mkdir()
    (tmp_path / "log/7_0_log.out").write_text(f"{KILLED}{srun}\n")
    other = Verdict(why="error", message="Connection reset", rank=0, node="mx0", job_id="7", time=1, traceback="")
    write_verdict(tmp_path, other)
    assert explain(tmp_path, "7").message.startswith(said)
    assert explain(tmp_path, "8") == other  # a new job has killed nobody yet
    write_verdict(tmp_path, other.model_copy(update={"why": "mistake", "message": "row 3", "rank": 1}))
    assert explain(tmp_path, "7").message == "row 3"


def test_a_package_of_the_same_name_elsewhere_is_an_error_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").touch()
    code = "from slurm.job import check_packages; check_packages()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "`data` comes from" in done.stderr or "ModuleNotFoundError: No module named 'data." in done.stderr
    check_packages()


def test_of_several_verdicts_the_users_mistake_is_the_one_that_explains(tmp_path):
    base = Verdict(why="error", message="connection closed", rank=0, node="a", job_id="1", time=1, traceback="")
    write_verdict(tmp_path, base)
    mistake = base.model_copy(update={"why": "mistake", "message": "row 3", "rank": 2, "time": 5.0})
    write_verdict(tmp_path, mistake)
    write_verdict(tmp_path, base.model_copy(update={"rank": 1, "time": 0.5}))
    assert read_verdict(tmp_path) == mistake


def test_two_that_publish_at_once_do_it_one_after_the_other(request_for, monkeypatch):
    """A script of sbatch, and a command that waits for its job: both write to the same files aside."""
    request = request_for()
    folder = take_over(request, None).folder
    commit_manifest(folder, [], {})
    busy = threading.Lock()
    copy = attempt_folder._copy

    def alone(source: Path, place: Path) -> None:
        assert busy.acquire(blocking=False), "two write the same file"
        time.sleep(0.2)
        copy(source, place)
        busy.release()

    monkeypatch.setattr(attempt_folder, "_copy", alone)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(attempt_folder.publish, request.folder, folder, request.publish) for _ in range(2)]:
            done.result()
    assert (request.folder / NAME).exists()


def test_the_record_of_a_job_by_hand_names_it(request_for):
    request = request_for()
    take_over(request, "123")
    record = read_record(request.folder)
    assert (record.executor, record.job_id) == ("slurm", "123")


SIGNALLED = """
import os, signal, threading
from data.job import Job
from slurm.job import Signals
job = Job()
Signals(job)
def tell():
    for _ in range(500):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR2)
thread = threading.Thread(target=tell)
thread.start()
while thread.is_alive():
    job.stop.wait(0.001)
"""


def test_many_signals_at_once_do_not_block_each_other():
    """Who cancels a local job tells each rank, and submitit's controller tells it again."""
    assert subprocess.run([sys.executable, "-c", SIGNALLED], timeout=60).returncode == 0


def test_no_other_user_can_take_a_lock_in_a_folder_that_is_open_to_a_group(tmp_path):
    with locked(tmp_path / "record"):
        hold(tmp_path / "run")
    let_go(tmp_path / "run")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
