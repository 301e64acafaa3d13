"""What the one who waits makes of a job that cannot get on, with a fake Slurm: full queues, bad nodes, held jobs."""

import json
import signal
import time
from pathlib import Path

import pytest

from slurm.claim import Withdrawn, submit_or_attach, withdraw
from slurm.config import SlurmConfig, WatchConfig
from slurm.exclusions import excluded
from slurm.query.queue import QueueFull, SubmitError, submit_error
from slurm.wait import judge, launch, lost
from slurm.wait.judge import End, Judge
from slurm.wait.state import query

ON_SLURM = SlurmConfig(executor="slurm", watch=WatchConfig(start_minutes=0.01))
SOON = "sbatch: error: Batch job submission failed: "


@pytest.fixture
def jobs(tmp_path, fake_slurm, knob):
    """All jobs that were ever submitted, by id; none starts by itself."""
    knob("held")

    def read() -> list[dict]:
        return [json.loads(path.read_text()) for path in sorted((tmp_path / "slurm").glob("[0-9]*.json"))]

    return read


@pytest.fixture
def said(request_for, jobs, fake_slurm):
    """`said(state, reason)` has Slurm say something of a stage's job; what the judge made of it, and told."""
    lines: list[str] = []
    attached = submit_or_attach(request_for(slurm=ON_SLURM))
    judging = Judge(attached.folder, attached.record, lines.append)

    def look(state: str, reason: str = "None", seconds: float = 0, **more: object) -> End | None:
        fake_slurm.save({**jobs()[0], "state": state, "reason": reason, **more})
        end = judging.look(query(attached.folder.parent, attached.record))
        until, is_last = time.monotonic() + seconds, not seconds  # from here on, since a query may be slow
        while end is None and not is_last:
            time.sleep(0.05)
            is_last = time.monotonic() >= until
            end = judging.look(query(attached.folder.parent, attached.record))
        return end

    look.lines, look.attached, look.judge = lines, attached, judging
    return look


def write_verdict(attempt: Path, why: str, **more: object) -> None:
    verdict = {"why": why, "message": "m", "rank": 0, "node": "mx1", "job_id": "1000", "time": 1, "traceback": ""}
    (attempt / "verdict-0000.json").write_text(json.dumps(verdict | more))


def sign(attempt: Path, node: str, rank: int = 0, restarts: int = 0) -> None:
    """A rank of job 1000 has begun on a node."""
    roll = attempt / "roll" / f"slurm-1000-0-{restarts}"
    roll.mkdir(parents=True, exist_ok=True)
    entry = {"rank": rank, "node": node, "pid": 1, "job_id": "1000", "began": 0, "event": "start", "at": 0, "time": 1}
    (roll / f"{rank}.json").write_text(json.dumps(entry))


def log(attempt: Path, *lines: str) -> None:
    (attempt / "log" / "1000_0_log.out").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        (SOON + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", True),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\n" + SOON + "Job violates accounting/QOS policy (job ...)", True),
        ("sbatch: error: AssocMaxSubmitJobLimit\n" + SOON + "Job violates accounting/QOS policy (job ...)", True),
        (SOON + "Slurm temporarily unable to accept job, sleeping and retrying", True),
        (SOON + "Socket timed out on send/recv operation", True),
        (SOON + "Unable to contact slurm controller (connect failure)", True),
        (SOON + "Required partition not available (inactive or drain)", True),
        ("sbatch: error: QOSMaxCpuPerUserLimit\n" + SOON + "Job violates accounting/QOS policy (job ...)", False),
        ("sbatch: error: invalid partition specified: nope\n" + SOON + "Invalid partition name specified", False),
        (SOON + "Invalid account or account/partition combination specified", False),
        (SOON + "Requested node configuration is not available\nthis run avoids nodes (mx1: timed out)", False),
    ],
)
def test_a_refusal_passes_or_stays(text, passes):
    error = submit_error(text)
    assert isinstance(error, SubmitError)
    assert isinstance(error, QueueFull) is passes


def refusing(folder: Path, *lines: str) -> None:
    """An sbatch that does `lines` of shell before it does its work, as long as there is a file `full`."""
    good = (folder / "sbatch").read_text().splitlines()
    (folder / "full").touch()
    (folder / "sbatch").write_text("\n".join([good[0], f"if [ -e {folder}/full ]; then", *lines, "fi", *good[1:]]))


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM])
def test_a_full_queue_is_asked_again_until_it_takes_the_job_or_the_person_leaves(
    jobs, stage_command, tmp_path, monkeypatch, number
):
    refusing(tmp_path / "bin", f"echo '{SOON}Job violates accounting/QOS policy' >&2; exit 1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "patch"))
    (tmp_path / "patch").mkdir()
    command = stage_command("slurm.executor=slurm", "synth.num_tasks=60", "synth.harder_tasks=5")
    while "Slurm takes no job now" not in (line := command.stdout.readline()):
        assert line, command.wait()
    if number is None:
        (tmp_path / "bin" / "full").unlink()
        while "submitted: " not in (line := command.stdout.readline()) and "resumed: " not in line:
            assert line, command.wait()
        assert len(jobs()) == 1
        number = signal.SIGINT
    command.send_signal(number)
    output = command.communicate()[0]
    assert command.returncode == (130 if number == signal.SIGINT else 75), output
    assert all(job["state"] == "CANCELLED" for job in jobs())


def test_a_submit_that_timed_out_and_made_the_job_is_not_repeated(request_for, jobs, tmp_path):
    slurm = tmp_path / "bin"
    refusing(slurm, f"rm {slurm}/full; {slurm}/sbatch \"$@\" >/dev/null; echo '{SOON}Socket timed out' >&2; exit 1")
    request = request_for(slurm=ON_SLURM)
    with pytest.raises(QueueFull, match="Socket timed out"):
        submit_or_attach(request)
    attached = submit_or_attach(request)
    assert (attached.how, attached.record.job_id) == ("re-attached", "1000")
    assert len(jobs()) == 1


def test_a_dependency_that_fails_ends_the_wait_and_the_job(said, jobs):
    assert said("PENDING", "DependencyNeverSatisfied") is End.FAILED
    assert "take the dependency away" in said.lines[0]
    assert jobs()[0]["state"] == "CANCELLED"


@pytest.mark.parametrize(("state", "reason"), [("REQUEUE_HOLD", "None"), ("PENDING", "JobHoldMaxRequeue")])
def test_a_held_job_is_given_up_after_a_while(said, jobs, monkeypatch, state, reason):
    assert said(state, reason) is None
    monkeypatch.setattr(judge, "RETURN_SECONDS", 0.2)
    assert said(state, reason, seconds=2) is End.FAILED
    assert "held by" in said.lines[0] and jobs()[0]["state"] == "CANCELLED"


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "BadConstraints", "PartitionNodeLimit"])
def test_a_job_that_a_person_holds_or_that_fits_nothing_for_a_night_is_waited_for(said, monkeypatch, reason):
    monkeypatch.setattr(judge, "RETURN_SECONDS", 0.1)
    assert said("PENDING", reason, seconds=0.5) is None


def test_a_name_that_slurm_does_not_know_is_one_that_it_may_know_again(said, jobs, monkeypatch):
    assert said("PENDING", "InvalidAccount", seconds=0.5) is None
    monkeypatch.setattr(judge, "HOPELESS_SECONDS", 0.1)
    assert said("PENDING", "InvalidAccount", seconds=1) is End.FAILED
    assert "name another account (slurm.account)" in said.lines[0] and jobs()[0]["state"] == "CANCELLED"


def test_a_job_that_slurm_starts_again_and_again_without_a_rank_is_ended_and_says_why(said, jobs):
    """As for a user that slurmctld does not know: "Can not create job credential", in its own log alone."""
    for restarts in range(launch.LAUNCHES):
        assert said("PENDING", "BeginTime", restarts=restarts) is None
    assert said("PENDING", "BeginTime", restarts=launch.LAUNCHES) is End.FAILED
    assert "was started 5 times by Slurm, and no rank has begun" in said.lines[0]
    assert jobs()[0]["state"] == "CANCELLED"


def test_a_job_that_is_often_started_again_and_gets_on_is_let_be(said):
    sign(said.attached.folder, "mx0", restarts=2)
    assert said("PENDING", "BeginTime", restarts=launch.LAUNCHES + 2) is None
    assert said("PENDING", "BeginTime", restarts=launch.LAUNCHES + 3) is End.FAILED


def test_a_bad_node_is_named_and_another_job_follows(said):
    write_verdict(said.attached.folder, "node", message="a card is missing", nodes=["mx1"])
    assert said("FAILED", "NonZeroExitCode") is End.AGAIN
    assert said.lines == ["mx1 failed: a card is missing; avoided from now on, a new job starts"]


def cancelled(jobs) -> bool:
    for _ in range(100):
        time.sleep(0.05)
        if jobs()[0]["state"] == "CANCELLED":
            return True
    return False


def test_a_job_of_which_no_rank_starts_is_ended_and_the_node_that_is_gone_is_avoided(said, jobs, monkeypatch):
    monkeypatch.setattr(judge, "gone", lambda nodes: {"mx2": "down*"})
    assert said("RUNNING", seconds=2, nodes="mx[1-2]") is None
    assert "it is down*" in excluded(said.attached.folder.parents[1])["mx2"].reason
    assert "job 1000 started no rank on mx[1-2] within 0.01 minutes" in said.lines[0]
    assert cancelled(jobs)
    monkeypatch.setitem(judge.CLEAR, "CANCELLED", 0.1)
    assert said("CANCELLED", seconds=1) is End.AGAIN
    assert not said.judge.doubt


def test_a_job_of_which_no_rank_starts_on_nodes_that_are_well_is_in_doubt(said, jobs, monkeypatch):
    monkeypatch.setattr(judge, "gone", lambda nodes: {})
    assert said("RUNNING", seconds=2, nodes="mx[1-2]") is None
    assert cancelled(jobs)
    assert "does a line of slurm.setup hang?; another job tries it without mx1" in said.lines[0]
    entry = excluded(said.attached.folder.parents[1])["mx1"]
    assert said.judge.suspects == ("mx1",) and entry.until < time.time() + 3601
    monkeypatch.setitem(judge.CLEAR, "CANCELLED", 0.1)
    assert said("CANCELLED", seconds=1) is End.AGAIN


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: Task launch for StepId=1000.0 failed on node mx3: Invalid job credential",
        "slurmstepd: error: Node failure on mx3",
        "srun: error: Node failure on mx3",
        "srun: error: mx3: task 1: Exited with exit code 2",
    ],
)
def test_a_node_on_which_srun_fails_is_avoided_at_once(said, line):
    sign(said.attached.folder, "mx0", restarts=0)
    log(said.attached.folder, line, "srun: error: Application launch failed")
    said("RUNNING", seconds=2, nodes="mx[0-3]", restarts=1)
    assert line in excluded(said.attached.folder.parents[1])["mx3"].reason


@pytest.mark.parametrize(
    "lines",
    [
        ["srun: error: mx[0-3]: tasks 0-3: Exited with exit code 2"],
        ["srun: error: mx3: task 3: Exited with exit code 1"],
        ["srun: error: mx3: task 3: Terminated"],
        ["srun: error: Node failure on mx3", "job 1000, start 2 on mx[0-2]"],
    ],
)
def test_what_is_wrong_everywhere_or_unknown_or_of_an_earlier_start_is_no_nodes_fault(said, lines):
    log(said.attached.folder, *lines)
    said("FAILED", "NonZeroExitCode", seconds=0.5, nodes="mx[0-3]", restarts=1)
    assert not excluded(said.attached.folder.parents[1])


def test_a_node_on_which_no_rank_came_up_is_avoided_though_others_began_and_stopped(said):
    sign(said.attached.folder, "mx0")
    write_verdict(said.attached.folder, "stopped")
    log(
        said.attached.folder,
        "srun: error: mx1: task 1: Exited with exit code 1",
        "srun: error: mx0: task 0: Terminated",
    )
    assert said("FAILED", "NonZeroExitCode", nodes="mx[0-1]") is End.AGAIN
    assert list(excluded(said.attached.folder.parents[1])) == ["mx1"]


def test_a_node_on_which_ranks_had_begun_is_not_blamed_for_its_crash(said):
    sign(said.attached.folder, "mx3")
    log(said.attached.folder, "srun: error: Node failure on mx3")
    said("RUNNING", seconds=1.5, nodes="mx[0-3]")
    assert not said.lines and not excluded(said.attached.folder.parents[1])


def test_a_first_node_that_cannot_open_the_log_is_under_suspicion(said, monkeypatch, knob):
    knob("sacct.down")
    monkeypatch.setattr(judge, "NO_LOG_SECONDS", 0.2)
    assert said("FAILED", "JobLaunchFailure", seconds=1, nodes="mx[2-3]") is End.AGAIN
    assert said.judge.suspects == ("mx2",)
    assert "could not open its log on its first node, mx2; another job tries it without mx2" in said.lines[0]


PEER = "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.3]:4711"


@pytest.mark.parametrize("node", ["mx1|down*", "mx1|idle"])
def test_a_rank_that_lost_its_peer_waits_for_slurm_to_miss_the_node(said, monkeypatch, tmp_path, node):
    """srun ends the job long before a node that has crashed is down for Slurm."""
    monkeypatch.setattr(lost, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(lost, "MARGIN_SECONDS", 5.0)
    (tmp_path / "bin/scontrol").write_text("#!/bin/sh\necho 'SlurmdTimeout           = 1 sec'\n")

    def answer(line: str) -> None:
        aside = tmp_path / "sinfo"  # a file that is being written cannot be run
        aside.write_text(f"#!/bin/sh\necho '{line}'\n")
        aside.chmod(0o755)
        aside.replace(tmp_path / "bin/sinfo")

    answer("mx1|alloc")
    sign(said.attached.folder, "mx0")
    write_verdict(said.attached.folder, "error", message=PEER)
    assert said("RUNNING", nodes="mx[0-1]") is None
    assert said("FAILED", "NonZeroExitCode", seconds=0.5, nodes="mx[0-1]") is None
    answer(node)
    assert said("FAILED", "NonZeroExitCode", seconds=60, nodes="mx[0-1]") is End.AGAIN
    assert not excluded(said.attached.folder.parents[1])
    if "down" in node:
        assert "job 1000 lost a node, which failed or does not answer: mx1 (down*)" in said.lines[1]
        assert not said.judge.doubt
    else:
        assert said.judge.doubt == "lost a rank, though Slurm misses none of its nodes mx[0-1]"


def test_an_error_of_its_own_is_told_at_once(said):
    sign(said.attached.folder, "mx0")
    write_verdict(said.attached.folder, "error", message="KeyError: 'loss'")
    assert said("FAILED", "NonZeroExitCode", nodes="mx[0-1]") is End.FAILED


def test_a_job_that_a_person_cancels_has_no_successor(said, request_for):
    request = request_for(slurm=ON_SLURM)
    write_verdict(said.attached.folder, "stopped")
    assert withdraw(request.folder) == "1000"
    assert said("COMPLETED", seconds=0) is None
    with pytest.raises(Withdrawn, match="job 1000 was cancelled"):
        submit_or_attach(request, after=said.attached)
    assert withdraw(request.folder) is None
    assert submit_or_attach(request).record.job_id == "1001", "who asks anew gets a new one"


def test_five_bad_nodes_in_a_row_are_enough(request_for, jobs, knob, fake_slurm, stage_command, tmp_path):
    """sbatch starts no job here: a shell in its place says that a node is bad."""
    (tmp_path / "slurm" / "held").unlink()
    bad = json.dumps(
        {
            "why": "node",
            "message": "no card",
            "rank": 0,
            "node": "mx1",
            "job_id": "1",
            "time": 1,
            "traceback": "",
            "nodes": ["mx1"],
        }
    )
    python = tmp_path / "bin" / "srun"
    python.write_text(
        f"#!/bin/sh\nfor f in {tmp_path}/runs/*/synth/*-1; do echo '{bad}' > $f/verdict-0000.json; done; exit 1\n"
    )
    command = stage_command("slurm.executor=slurm", "synth.num_tasks=60")
    output = command.communicate(timeout=120)[0]
    assert command.returncode == 1
    assert "5 jobs in a row ended without a committed step" in output, output
    assert len(jobs()) == 5
