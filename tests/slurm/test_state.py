"""What is believed of a job: squeue, then sacct, then the disk, and never a query that failed."""

import os
import time
from pathlib import Path

import pytest

from checkpoints.manifest import NAME
from slurm.query.queue import NoAnswer, find_by_name
from slurm.record import Record
from slurm.wait.state import Kind, query

RECORD = Record(
    stage="rl", fingerprint="abc", number=1, executor="slurm", job_name="n", host="h", submitted=0, job_id="7"
)
SILENT = "echo 'Unable to contact slurm controller' >&2; exit 1"
UNKNOWN_ID = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make squeue and sacct say something; None takes the command away."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(squeue: str | None, sacct: str | None) -> None:
        for name, script in (("squeue", squeue), ("sacct", sacct)):
            (tmp_path / name).write_text(f"#!/bin/sh\n{script if script is not None else 'exit 127'}\n")
            (tmp_path / name).chmod(0o755)

    return write


@pytest.mark.parametrize(
    ("squeue", "sacct", "kind"),
    [
        ("echo 'PENDING|Priority'", SILENT, Kind.ACTIVE),
        ("echo 'RUNNING|None'", "echo 'FAILED|1:0'", Kind.ACTIVE),
        ("echo 'COMPLETING|None'", SILENT, Kind.ACTIVE),
        ("echo 'NODE_FAIL|None'", SILENT, Kind.RETURNING),
        ("echo 'PREEMPTED|None'", SILENT, Kind.RETURNING),
        ("echo 'EXPEDITING|None'", SILENT, Kind.ACTIVE),
        ("echo 'FAILED|NonZeroExitCode'", "echo 'RUNNING|0:0'", Kind.ENDED),
        (UNKNOWN_ID, "echo 'REQUEUED|0:0'", Kind.ENDED),
        (UNKNOWN_ID, "echo 'NODE_FAIL|0:0'", Kind.ENDED),
        (UNKNOWN_ID, "echo 'PENDING|0:0'", Kind.ENDED),
        (UNKNOWN_ID, "echo 'LAUNCH_FAILED|0:0'", Kind.ENDED),
        (UNKNOWN_ID, "echo 'CANCELLED by 0|0:15'", Kind.ENDED),
        (UNKNOWN_ID, "echo 'OUT_OF_MEMORY|0:125'", Kind.ENDED),
        (UNKNOWN_ID, "echo 'RUNNING|0:0'", Kind.ENDED),
        (UNKNOWN_ID, NO_ACCOUNTING, Kind.ENDED),
        (UNKNOWN_ID, "exit 0", Kind.ENDED),
        (SILENT, "echo 'RUNNING|0:0'", Kind.ACTIVE),
        (SILENT, "echo 'NODE_FAIL|0:0'", Kind.RETURNING),
        (SILENT, "echo 'COMPLETED|0:0'", Kind.ENDED),
        (SILENT, "echo 'LAUNCH_FAILED|0:0'", Kind.UNKNOWN),
        (SILENT, NO_ACCOUNTING, Kind.UNKNOWN),
        (SILENT, "exit 0", Kind.UNKNOWN),
        (None, None, Kind.UNKNOWN),
    ],
)
def test_a_job_is_over_only_when_somebody_who_knows_says_so(says, tmp_path, squeue, sacct, kind):
    says(squeue, sacct)
    assert query(tmp_path, RECORD).kind is kind


@pytest.mark.parametrize(
    ("rest", "kind"),
    [
        ("n|/runs/demo/rl/abc-1/log/submission_file_7.sh|", Kind.ACTIVE),
        ("renamed|/runs/demo/rl/abc-1/log/submission_file_7.sh|", Kind.ACTIVE),
        ("a|b|/runs/demo/rl/abc-2/log/submission_file_7.sh|", Kind.ENDED),
        ("of a stranger|(null)|", Kind.ENDED),
    ],
)
def test_the_number_of_ours_given_out_again_is_no_job_of_ours(says, tmp_path, rest, kind):
    says(f"echo 'RUNNING|None|mx0|0|{rest}'", "echo 'RUNNING|0:0|of a stranger'")
    assert query(tmp_path, RECORD).kind is kind


def test_a_strangers_entry_in_the_accounting_says_nothing_of_our_job(says, tmp_path):
    says(SILENT, "echo 'COMPLETED|0:0|of a stranger'")
    assert query(tmp_path, RECORD).kind is Kind.UNKNOWN
    says(SILENT, "echo 'COMPLETED|0:0|n'")
    assert query(tmp_path, RECORD).kind is Kind.ENDED


def test_a_lost_node_is_how_a_job_ended_that_slurm_did_not_start_again(says, tmp_path):
    says(UNKNOWN_ID, "echo 'NODE_FAIL|0:0|n'")
    found = query(tmp_path, RECORD)
    assert (found.word, found.text) == ("NODE_FAIL", "lost a node")
    says(UNKNOWN_ID, "echo 'RUNNING|0:0|n'")
    assert query(tmp_path, RECORD).text == "is not in the queue any more"


def test_the_search_by_name_is_for_jobs_of_this_user_in_hidden_partitions_too(says):
    says(f"""case "$*" in *--all*--user={os.getuid()}*) echo 8;; *) echo 9;; esac""", SILENT)
    assert find_by_name("n", time.time()) == "8"


def test_the_result_on_disk_outweighs_what_slurm_says(says, tmp_path):
    says("echo 'FAILED|NonZeroExitCode'", "echo 'FAILED|1:0'")
    (tmp_path / RECORD.attempt).mkdir()
    (tmp_path / RECORD.attempt / NAME).touch()
    assert query(tmp_path, RECORD).kind is Kind.FINISHED


def test_a_job_that_was_never_submitted_is_over(says, tmp_path):
    says(SILENT, SILENT)
    assert query(tmp_path, RECORD.model_copy(update={"job_id": None})).kind is Kind.ENDED


def test_the_search_by_name_does_not_take_silence_for_absence(says):
    says(SILENT, "exit 0")
    with pytest.raises(NoAnswer, match="Unable to contact"):
        find_by_name("n", time.time())


def test_the_search_by_name_finds_a_job_that_squeue_has_forgotten(says):
    says("exit 0", "echo 41; echo 42")
    assert find_by_name("n", time.time()) == "42"


def test_without_accounting_the_search_by_name_is_squeues_word(says):
    says("exit 0", NO_ACCOUNTING)
    assert find_by_name("n", time.time()) is None


def test_a_local_job_of_another_machine_is_not_called_dead(tmp_path):
    record = RECORD.model_copy(update={"executor": "local", "host": "elsewhere"})
    with pytest.raises(ValueError, match=r"started on elsewhere.*record\.json"):
        query(tmp_path, record)


def test_a_local_job_without_processes_is_over(tmp_path):
    record = RECORD.model_copy(update={"executor": "local", "host": os.uname().nodename, "job_id": str(os.getpid())})
    assert query(tmp_path, record).kind is Kind.ENDED
