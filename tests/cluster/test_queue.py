"""Jobs that wait, submits that Slurm does not take, and jobs that it has forgotten. Measured for docs/faults.md."""

import signal
import time

import pytest

from slurm.exclusions import exclude

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_job_that_waits_says_for_what_and_ends_when_it_waits_for_nothing(life, faults):
    began = time.monotonic()
    for node in life.cluster.nodes():
        life.cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        drained = life.qianka("stage", "synth", "tiny.yaml")
        drained.sees("waits in the queue: nodes that it could have are down, drained or reserved")
        line = drained.line("nodes that it could have")
        faults.note("all nodes are drained while the job waits", line, time.monotonic() - began)
    finally:
        for node in life.cluster.nodes():
            life.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
    assert drained.ends() == 0, drained.said()

    failed = life.cluster.submit("exit 1")
    life.cluster.wait(failed, "FAILED")
    life.settings(f"dependency: 'afterok:{failed}'")
    began = time.monotonic()
    hopeless = life.qianka("stage", "sft", "tiny.yaml")
    assert hopeless.ends(60) == 1
    line = hopeless.line("the job that it depends on has failed, so that it can never start; take")
    faults.note("a dependency has failed", line, time.monotonic() - began)
    assert not life.cluster.mine()


def test_a_job_that_squeue_has_forgotten_is_judged_by_its_files(life, faults):
    """Without accounting nobody else knows it."""
    life.settings("setup: ['exit 3']")
    nothing = ("AccountingStorageType=accounting_storage/none", "AccountingStorageTRES=cpu")
    with life.cluster.controller(*nothing, "MinJobAge=2"):

        def forgotten(job: str) -> bool:
            return job not in life.cluster.run("squeue", "-h", "--states=all", "-o", "%A").split()

        first = life.qianka("stage", "synth", "tiny.yaml")
        failed = life.job("synth")
        first.kill()
        life.wait_for(lambda: forgotten(failed), "the failed job is forgotten", 60)
        life.settings("additional: {begin: now+1hour}")
        began = time.monotonic()
        second = life.qianka("stage", "synth", "tiny.yaml")
        second.sees("synth: resumed")
        line = second.line("synth: resumed")
        faults.note("no accounting, and squeue has forgotten a job that failed", line, time.monotonic() - began)
        second.sees("waits in the queue: its")
        second.kill()
        job = life.job("synth")
        life.release(job)
        life.wait_for(lambda: forgotten(job), "the job is forgotten", 90)
        began = time.monotonic()
        third = life.qianka("stage", "synth", "tiny.yaml")
        assert third.ends() == 0, third.said()
        line = third.line("synth: found finished")
        faults.note("no accounting, and squeue has forgotten the job", line, time.monotonic() - began)
        assert life.job("synth") == job != failed


def test_a_submit_that_slurm_does_not_take_is_repeated_until_it_does(life, faults):
    life.settings("additional: {begin: now+1hour}")
    life.cluster.kill_daemon("slurmctld")
    began = time.monotonic()
    try:
        command = life.qianka("stage", "synth", "tiny.yaml")
        command.sees("synth: Slurm takes no job now, so it is asked again every 10 s", 120)
        line = command.line("Slurm takes no job now")
    finally:
        life.cluster.script("up")
    command.sees("waits in the queue: its", 60)
    faults.note("slurmctld is gone when a job is submitted", line, time.monotonic() - began)
    assert life.jobs("synth") == [life.job("synth")]
    assert command.tell(signal.SIGINT) == 130


def test_a_full_queue_is_waited_for(life, faults):
    run = life.cluster.run
    run("sacctmgr", "-i", "add", "account", "crowd")
    run("sacctmgr", "-i", "add", "user", "root", "account=crowd", "defaultaccount=crowd", "maxsubmitjobs=1")
    try:
        with life.cluster.controller("AccountingStorageEnforce=limits"):
            other = life.cluster.submit("true", "--hold")
            command = life.qianka("stage", "synth", "tiny.yaml")
            command.sees("synth: Slurm takes no job now, so it is asked again every 10 s", 60)
            line, began = command.line("Slurm takes no job now"), time.monotonic()
            run("scancel", other)
            command.sees(", Slurm job ")
            faults.note("the queue is full (MaxSubmitJobs)", line, time.monotonic() - began)
            assert command.ends() == 0, command.said()
            assert life.jobs("synth") == [life.job("synth")]
            # The accounting has its end, and lets the account go.
            kept = ("sacct", "-n", "-X", "-P", "-j", life.job("synth"), "-o", "State")
            life.wait_for(lambda: run(*kept) == "COMPLETED", "the accounting has the job's end")
    finally:
        run("sacctmgr", "-i", "delete", "user", "name=root", "account=crowd")
        run("sacctmgr", "-i", "delete", "account", "crowd")


def test_a_bad_node_is_named_and_the_next_job_avoids_it(life, faults):
    """A node on which the run failed before, but which was not avoided yet when the job was submitted."""
    life.settings("additional: {begin: now+1hour}")
    command = life.qianka("stage", "synth", "tiny.yaml")
    command.sees("waits in the queue: its")
    first = life.job("synth")
    exclude(life.folder / "runs/tiny", ["mx0"], "a card fell off", 1)
    life.release(first)
    began = time.monotonic()
    command.sees("synth: mx0 failed: this run avoids mx0 until ")
    line = command.line("mx0 failed: this run avoids mx0")
    life.wait_for(lambda: life.job("synth") != first, "another job")
    faults.note("a bad node of an earlier job", line, time.monotonic() - began)
    second = life.job("synth")
    assert "ExcNodeList=mx0" in life.cluster.run("scontrol", "show", "job", second)
    life.release(second)
    assert command.ends() == 0, command.said()
    assert life.jobs("synth") == [first, second]
