"""The checks of a file system find what is wrong with it, and leave nothing behind."""

import fcntl
import time

import pytest

from slurm.health import files
from slurm.health.files import check_files, check_space, judge_clock


def verdicts(findings):
    return {finding.check: finding.verdict for finding in findings}


def test_a_good_file_system_is_ok_and_clean_afterwards(tmp_path):
    found = check_files(tmp_path, "mx0") + check_space(tmp_path, "mx0")
    assert verdicts(found) == dict.fromkeys(verdicts(found), "ok")
    assert list(verdicts(found)) == [
        "rename", "fsync", "locks", "file times", "space of run folder", "space of /tmp", "space of /dev/shm",
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_locks_that_keep_nobody_out_are_bad(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, operation: None)
    found = {finding.check: finding for finding in check_files(tmp_path, "mx0")}
    assert (found["locks"].verdict, found["locks"].measured) == ("bad", "two processes held one lock")
    assert "-o flock" in found["locks"].way_out


def test_a_rename_that_is_a_copy_is_bad(tmp_path, monkeypatch):
    def slow_copy(self, target):
        with target.open("wb") as stream:
            stream.write(self.read_bytes()[:100])
            stream.flush()
            time.sleep(0.01)

    monkeypatch.setattr(files.Path, "replace", slow_copy)
    assert verdicts(check_files(tmp_path, "mx0"))["rename"] == "bad"


def test_a_check_that_hangs_in_the_file_system_is_bad_and_the_next_ones_run(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LIMIT_SECONDS", 8.0)  # only the one that hangs takes so long
    monkeypatch.setattr(files, "check_fsync", lambda folder, node: time.sleep(60))
    found = verdicts(check_files(tmp_path, "mx0"))
    assert (found["fsync"], found["locks"]) == ("bad", "ok")
    assert list(tmp_path.iterdir()) == []


def test_slow_small_writes_and_little_room_are_bad(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SLOW_FSYNC_MS", 0.0)
    monkeypatch.setitem(files.FREE_BYTES, "run folder", 1 << 60)
    assert verdicts(check_files(tmp_path, "mx0"))["fsync"] == "bad"
    (space, *_) = check_space(tmp_path, "mx0")
    assert (space.verdict, space.way_out) == ("bad", f"make room in {tmp_path}")


def test_a_folder_that_takes_no_files_is_bad_and_named(tmp_path):
    found = check_files(tmp_path / "gone", "mx0")
    assert {finding.verdict for finding in found if finding.check != "remove"} == {"bad"}


@pytest.mark.parametrize(
    ("skew", "uncertainty", "verdict"),
    [
        (0.1, 0.01, "ok"),
        (-0.9, 0.05, "ok"),
        (5, 0.1, "bad"),
        (-1.2, 0.1, "bad"),
        (0.9, 0.5, "unknown"),
        (2, 3, "unknown"),
    ],
)
def test_a_clock_is_judged_only_as_far_as_it_is_known(skew, uncertainty, verdict):
    assert judge_clock("clock", "mx0", skew, uncertainty).verdict == verdict


def test_a_clock_that_is_ahead_shows_in_the_time_of_a_file(tmp_path, monkeypatch):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 100)
    found = {finding.check: finding for finding in check_files(tmp_path, "mx0")}
    assert found["file times"].verdict == "bad"
    assert found["file times"].measured.startswith(("-100.0", "-99.9"))
