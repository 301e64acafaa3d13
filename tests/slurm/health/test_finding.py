"""A check that hangs, fails or is refused is a finding, and never the end of the doctor."""

import errno
import os
import subprocess
import sys
import time

import psutil

from slurm.health.finding import Finding, is_bad, within


def found(text="measured", verdict="ok"):
    return Finding("a check", "mx0", verdict, text)


def test_findings_come_back_whole_however_many_they_are():
    many = [found(f"number {number}, 沐曦") for number in range(5000)]
    assert within(20, "a check", "mx0", lambda: many) == many


def test_a_check_that_hangs_is_bad_and_leaves_no_process():
    begin, before = time.monotonic(), set(psutil.pids())

    def hang():
        subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])

    (finding,) = within(0.5, "a check", "mx0", hang, "a way out")
    assert finding == Finding("a check", "mx0", "bad", "no answer within 0.5 s", "a way out")
    assert time.monotonic() - begin < 30
    children = psutil.Process().children(recursive=True)
    assert [child for child in children if child.pid not in before and child.status() != "zombie"] == []


def test_a_refusal_of_the_system_is_bad_and_told_in_its_words():
    def refuse():
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/runs/x")

    (finding,) = within(5, "a check", "mx0", refuse)
    assert (finding.verdict, finding.measured) == ("bad", "your quota of this disk is used up")


def test_a_check_with_a_fault_of_its_own_is_unknown_and_never_well():
    (finding,) = within(5, "a check", "mx0", lambda: 1 / 0)
    assert finding.verdict == "unknown"
    assert "ZeroDivisionError" in finding.measured
    (finding,) = within(5, "a check", "mx0", lambda: os._exit(3))
    assert finding.verdict == "unknown"


def test_only_bad_is_bad():
    assert not is_bad([found(), found(verdict="unknown"), found(verdict="not run")])
    assert is_bad([found(), found(verdict="bad")])
