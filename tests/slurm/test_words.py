"""Slurm's words become words for a person, and unknown ones stay as they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.query.words import REASONS, STATES, is_held, may_pass, reason_words, state_words, way_out


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (("PENDING", "Priority"), "waits in the queue: jobs of higher priority are before it"),
        (("PENDING", "QOSMaxJobsPerUserLimit"), "waits in the queue: a limit of the QOS is reached (QOSMaxJobs"),
        (("PENDING", "AssocGrpCpuLimit"), "waits in the queue: a limit of the account is reached (AssocGrpCpuLimit)"),
        (("PENDING", "ReqNodeNotAvail, UnavailableNodes:mx[1-2]"), "drained or reserved (UnavailableNodes:mx[1-2])"),
        (("PENDING", "SomethingNew"), "waits in the queue: SomethingNew"),
        (("RUNNING", "None", "mx[0-1]"), "runs on mx[0-1]"),
        (("CANCELLED by 0", ""), "was cancelled by root"),
        (("CANCELLED by 54321", ""), "was cancelled by user 54321"),
        (("CANCELLED+", ""), "was cancelled"),
        (("FAILED", "exit code 3:0"), "failed (exit code 3:0)"),
        (("FAILED", "exit code 0:53"), "failed (its first node could not open the log; is the run's folder there"),
        (("TIMEOUT", "TimeLimit"), "reached its time limit"),
        (("OUT_OF_MEMORY", "exit code 0:125"), "ran out of memory on a node: ask for more"),
        (("NEW_STATE", ""), "NEW_STATE"),
    ],
)
def test_a_state_is_told_in_words(said: tuple[str, ...], words: str):
    assert words in state_words(*said)


def test_what_no_waiting_changes_has_a_way_out_and_what_a_person_holds_is_known():
    assert "slurm.dependency" in (way_out("DependencyNeverSatisfied") or "")
    assert way_out("Priority") is None
    assert is_held("REQUEUE_HOLD", "") and is_held("PENDING", "JobHoldMaxRequeue")
    assert not is_held("PENDING", "JobHeldUser") and not is_held("PENDING", "JobHeldAdmin")
    assert may_pass("InvalidQOS") and not may_pass("DependencyNeverSatisfied")


@given(st.sampled_from([*STATES, "CANCELLED by 7", "X+"]), st.sampled_from([*REASONS, ""]) | st.text(), st.text())
def test_every_answer_of_slurm_has_words(state: str, reason: str, nodes: str):
    assert state_words(state, reason, nodes)
    assert isinstance(reason_words(reason), str)
    assert way_out(reason) is None or state_words("PENDING", reason)
