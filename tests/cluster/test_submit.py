"""What is asked of Slurm arrives there, what cannot be had is refused before, and what is secret is not shown."""

import getpass
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from slurm.ask.check import check_slurm
from slurm.ask.submit import submit_to_slurm
from slurm.attempt import open_attempt
from slurm.config import ResourcesConfig, SlurmConfig
from slurm.exclusions import exclude
from slurm.query.answers import read_words
from slurm.query.queue import SubmitError
from tests.cluster.conftest import wait_for
from workflow.config import load
from workflow.request import make_request

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
ODD = """it's 5$ for "a" `b` \\ # & ; | > 千卡 %j"""


@pytest.fixture(scope="module")
def site(slurm_conf) -> Generator[None]:
    """Features, an account, a QOS and a reservation, as a site's administrator would make them."""
    user = getpass.getuser()
    make = (
        "scontrol update nodename=mx[0-1] availablefeatures=c588,near activefeatures=c588,near",
        "sacctmgr -i add account lab description=lab organization=lab",
        f"sacctmgr -i add user {user} account=lab",
        "sacctmgr -i add qos high set priority=10",
        f"scontrol create reservationname=course starttime=now duration=60 user={user} nodes=mx[0-1] flags=ignore_jobs",
    )
    unmake = (
        "scontrol delete reservationname=course",
        "sacctmgr -i delete qos high",
        f"sacctmgr -i delete user name={user} account=lab",
        "sacctmgr -i delete account lab",
        "scontrol update nodename=mx[0-1] availablefeatures= activefeatures=",
    )
    env = os.environ | {"SLURM_CONF": slurm_conf}
    for command in unmake:  # what a killed test has left
        subprocess.run(command.split(), env=env, capture_output=True)
    for command in make:
        subprocess.run(command.split(), env=env, capture_output=True, check=True)
    yield
    for command in unmake:
        subprocess.run(command.split(), env=env, capture_output=True, check=True)


@pytest.fixture
def submitted(cluster, tmp_path, monkeypatch) -> Callable[..., dict[str, str]]:
    """Submits the synth stage with a config, and returns what `scontrol show job` says of its job, which is held."""
    monkeypatch.chdir(tmp_path)

    def submit(**config: object) -> dict[str, str]:
        request = make_request(load([]), "synth", 1).model_copy(update={"slurm": SlurmConfig.model_validate(config)})
        attempt = request.folder / "attempt"
        open_attempt(request, attempt, 1)
        job = submit_to_slurm(request, attempt, "demo-synth-1")
        return {**read_words(cluster.run("scontrol", "show", "job", "-o", job)), "id": job}

    return submit


def test_every_option_of_the_config_reaches_slurm(cluster, site, submitted, tmp_path, monkeypatch):
    first = cluster.submit("true", "--hold")
    monkeypatch.setenv("SBATCH_PARTITION", "urgent")  # which sbatch would put over the batch script
    monkeypatch.setenv("SBATCH_ACCOUNT", "lab")
    monkeypatch.setenv("SLURM_CPU_BIND", "quiet,mask_cpu:0x1")
    exclude(tmp_path / "runs" / "demo", ["mx3"], "its card 2 is broken", hours=1)
    job = submitted(
        partition="small",
        qos="high",
        reservation="nobody",
        comment="of the site",
        mail_user="me@example.org",
        mail_type="FAIL",
        additional={"hold": True, "licenses": "solver:1", "switches": "1@5", "exclude": "mx[2]", "exclusive": True},
        signal_seconds=90,
        setup=["export FROM_SITE=yes"],
        synth={
            "partition": "supernode",
            "reservation": "course",
            "constraint": "c588&near",
            "dependency": f"afterany:{first}",
            "comment": ODD,
            "tasks_per_node": 2,
            "cpus_per_task": 3,
            "gpus_per_node": 4,
            "minutes": 17,
            "additional": {"nice": 5, "exclusive": False},
        },
    )
    wanted = {
        "JobName": "demo-synth-1",
        "Partition": "supernode",
        "Account": "lab",
        "QOS": "high",
        "Reservation": "course",
        "Features": "c588&near",
        "Dependency": f"afterany:{first}(unfulfilled),singleton(unfulfilled)",
        "Comment": ODD,
        "MailUser": "me@example.org",
        "MailType": "FAIL",
        "Licenses": "solver:1",
        "Nice": "5",
        "Switches": "1@00:05:00",
        "ExcNodeList": "mx[2-3]",
        "OverSubscribe": "OK",
        "NumTasks": "2",
        "CPUs/Task": "3",
        "TresPerNode": "gres:gpu:4",
        "TimeLimit": "00:17:00",
        "Requeue": "1",
    }
    assert {name: job.get(name, "") for name in wanted} == wanted
    script = cluster.run("scontrol", "write", "batch_script", job["id"], "-")
    assert script.index("export FROM_SITE=yes") < script.index("\nsrun ")
    assert "#SBATCH --signal=USR2@90" in script
    assert "wckey" not in script


def test_a_job_on_a_described_site_asks_to_be_kept_in_one_supernode(cluster, submitted, tmp_path):
    site = tmp_path / "site.yaml"
    site.write_text(
        'cards: 8\nscheduler: tree\nsupernodes:\n- {name: sn0, nodes: "mx[0-1]"}\n- {name: sn1, nodes: "mx[2-3]"}\n'
    )
    shape = {"nodes": 2, "tasks_per_node": 8}
    job = submitted(topology=str(site), additional={"hold": True}, synth=shape)
    assert job["Switches"] == "1@00:05:00", "an hour was asked for, and max_switch_wait is 5 minutes"
    own = {**shape, "additional": {"switches": False}}
    assert "Switches" not in submitted(topology=str(site), additional={"hold": True}, synth=own)


REFUSED = {
    "partition": (
        {"partition": "supernod"},
        "slurm.partition is 'supernod', but there is no partition supernod; did you mean supernode? Known: small, ",
    ),
    "account": ({"account": "lap"}, "slurm.account is 'lap', but there is no account of yours lap; did you mean lab?"),
    "qos": ({"qos": "hihg"}, "slurm.qos is 'hihg', but there is no QOS hihg; did you mean high?"),
    "qos of a partition": (
        {"qos": "high", "partition": "small", "synth": {"minutes": 9}},
        "slurm.qos is 'high', which partition small does not take; it takes normal",
    ),
    "feature": (
        {"constraint": "c589&near"},
        "slurm.constraint is 'c589&near', but there is no node feature c589; did you mean c588? Known: c588, near",
    ),
    "nodes with a feature": (
        {"constraint": "c588", "synth": {"nodes": 3}},
        "slurm.constraint is 'c588'; the job wants 3 nodes, and only 2 of the 4 nodes of partition supernode will do",
    ),
    "reservation": ({"synth": {"reservation": "curse"}}, "slurm.synth.reservation is 'curse', but there is no reserv"),
    "nodes": ({"synth": {"nodes": 5}}, "slurm.synth.nodes is 5, but partition supernode has 4 nodes"),
    "nodes of a job": (
        {"partition": "small", "synth": {"nodes": 2, "minutes": 9}},
        "slurm.synth.nodes is 2, but a job of partition small gets 1 at most (MaxNodes)",
    ),
    "minutes": (
        {"partition": "small"},
        "slurm.synth.minutes is 240, but a job of partition small gets 120 at most; set it to that",
    ),
    "cores": (
        {"synth": {"tasks_per_node": 9, "cpus_per_task": 8}},
        "slurm.synth.tasks_per_node is 9 with 8 cpus_per_task, which takes 72 cores a node, but the largest has 64",
    ),
    "cards": ({"synth": {"gpus_per_node": 9}}, "slurm.synth.gpus_per_node is 9, but the most that a node has is 8"),
    "node": (
        {"additional": {"nodelist": "mx[3-4]"}},
        "slurm.additional.nodelist is 'mx[3-4]', but there is no node mx4; did you mean mx",
    ),
    "exclude": (
        {"additional": {"exclude": "mx[1-3]"}, "synth": {"nodes": 2}},
        "slurm.additional.exclude is 'mx[1-3]'; the job wants 2 nodes, and only 1 of the 4 nodes",
    ),
    "licence": (
        {"additional": {"licenses": "solver:5"}},
        "sbatch refuses the job of synth: allocation failure: Invalid license specification (slurm.additional.licen",
    ),
    "an option": ({"additional": {"frobnicate": 1}}, "unrecognized option '--frobnicate=1'"),
}


@pytest.mark.parametrize(("config", "told"), REFUSED.values(), ids=REFUSED)
def test_what_slurm_has_not_is_refused_before_the_submit_with_the_key_and_the_way_out(
    cluster, site, tmp_path, config, told
):
    with pytest.raises(ValueError) as caught:
        check_slurm(SlurmConfig.model_validate(config), ["synth"], tmp_path)
    assert told in str(caught.value)


def test_what_makes_a_job_wait_is_no_mistake_and_is_told(cluster, site, tmp_path):
    exclude(tmp_path, ["mx2"], "clock off by 9 s", hours=1)
    cluster.run("scontrol", "update", "nodename=mx3", "state=drain", "reason=test")
    try:
        wide = SlurmConfig(rl=ResourcesConfig(nodes=3))
        assert check_slurm(wide, ["sft", "rl"], tmp_path) == [
            "rl: slurm.rl.nodes is 3, and partition supernode has 2 that fit and are in service (mx3 drain); the job "
            "will wait for more"
        ]
    finally:
        cluster.run("scontrol", "update", "nodename=mx3", "state=resume")
    assert check_slurm(SlurmConfig(dependency="afterok:9999999"), ["rl"], tmp_path) == [
        "rl: slurm.dependency is 'afterok:9999999', and Slurm shows you no job 9999999; if there is none, nothing is "
        "waited for"
    ], "with PrivateData=jobs it may be a colleague's"
    with pytest.raises(ValueError, match="100%/run: Slurm gives `%` and backslashes"):
        check_slurm(SlurmConfig(), ["rl"], Path("/100%/run"))
    with pytest.raises(ValueError, match="this run avoids mx2 until .* \\(clock off by 9 s\\); remove .*excluded.json"):
        check_slurm(SlurmConfig(rl=ResourcesConfig(nodes=4)), ["rl"], tmp_path)


def test_the_commands_refuse_it_for_all_stages_at_once_and_make_no_folder(cluster, qianka, tiny):
    wrong = ("slurm={executor: slurm, rl: {partition: supernod}, evaluate: {nodes: 9}}",)
    for command in ("run", "stage rl", "stage evaluate"):
        done = qianka(tiny.parent, *command.split(), tiny, *wrong)
        assert done.returncode == 2, done.stdout
        assert ("slurm.rl.partition is 'supernod'" in done.stdout) == (command != "stage evaluate")
        assert ("slurm.evaluate.nodes is 9" in done.stdout) == (command != "stage rl")
    command = [sys.executable, "-P", "-m", "snakemake", "-s", ROOT / "Snakefile", "--cores", "1"]
    settings = ["--configfile", tiny, "--config", "slurm={executor: slurm, rl: {partition: supernod}}"]
    done = subprocess.run([*command, *settings], cwd=tiny.parent, capture_output=True, text=True)
    assert done.returncode != 0
    assert "slurm.rl.partition is 'supernod', but there is no partition supernod" in done.stdout + done.stderr
    assert not (tiny.parent / "runs").exists()
    assert cluster.mine() == []


def test_of_two_jobs_of_one_attempt_slurm_runs_one_at_a_time_after_a_requeue_too(cluster, submitted):
    def state(job: str) -> str:
        return cluster.run("squeue", "-h", "-j", job, "-o", "%T %r")

    first = submitted(setup=["sleep 60"])["id"]
    cluster.wait(first, "RUNNING")
    second = submitted(setup=["sleep 60"])["id"]
    assert state(second) == "PENDING Dependency"
    cluster.run("scontrol", "requeue", first)
    starts = ("squeue", "-h", "-j", first, "-O", "State:|,RestartCnt:|")
    # By itself, once its credential has expired: slurmd refuses what is started in the second of the kill.
    wait_for(lambda: cluster.run(*starts).replace(" ", "").startswith("RUNNING|1"), "it runs again")
    assert state(second) == "PENDING Dependency"
    cluster.run("scontrol", "requeue", first)
    cluster.run("scancel", first)
    cluster.wait(second, "RUNNING")


NASTY = {
    "SLURM_TIME_FORMAT": "relative",
    "SLURM_CLUSTERS": "elsewhere",
    "SLURM_BITSTR_LEN": "3",
    "SQUEUE_PARTITION": "small",
    "SQUEUE_USERS": "nobody",
    "SQUEUE_STATES": "TIMEOUT",
    "SQUEUE_NAMES": "another",
    "SQUEUE_SORT": "-i",
    "SINFO_PARTITION": "small",
    "SBATCH_CLUSTERS": "elsewhere",
    "SBATCH_HOLD": "1",
    "SCANCEL_PARTITION": "small",
    "SCANCEL_INTERACTIVE": "1",
}


def test_a_job_is_submitted_found_and_cancelled_whatever_is_set_for_slurms_commands(life):
    life.settings("additional: {begin: now+1hour}")
    first = life.qianka("stage", "synth", "tiny.yaml", env=NASTY)
    first.sees("its time to start has not come")
    first.kill()
    job = life.job("synth")
    life.cluster.run("scontrol", "update", f"jobid={job}", "jobname=mine")
    second = life.qianka("stage", "synth", "tiny.yaml", env=NASTY)
    second.sees("synth: re-attached")
    life.cluster.run("scontrol", "update", f"jobid={job}", f"jobname={life.record('synth').job_name}")
    status = life.qianka("status", "tiny", env=NASTY)
    status.sees(f"{job}")
    cancelled = life.qianka("cancel", env=NASTY)
    assert cancelled.ends() == 0, cancelled.said()
    assert life.cluster.state(job).startswith("CANCELLED")
    assert life.jobs("synth") == [job]


def test_a_job_that_the_avoided_nodes_leave_no_room_for_says_which_and_why(cluster, submitted, tmp_path):
    exclude(tmp_path / "runs" / "demo", ["mx0", "mx1", "mx2", "mx3"], "frozen", hours=1)
    with pytest.raises(SubmitError, match=r"this run avoids nodes \(mx0: frozen; .*\); remove .*demo/excluded.json"):
        submitted()


@pytest.mark.parametrize("umask", ["000", "077"])
def test_a_run_is_its_owners_alone_and_shows_no_secret(cluster, qianka, tiny, umask):
    folder, secret = tiny.parent / "a b'c$d", "hunter2hunter2"
    folder.mkdir()
    shell = ("bash", "-c", f'umask {umask}; exec "$@"', "bash")
    removed = "slurm.environment={HF_TOKEN: {value: null, source: it is mine}}"
    arguments = ("stage", "synth", tiny, "slurm.executor=slurm", "slurm.comment=for the lab", removed)
    around = {"SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_NTASKS": "9", "HF_TOKEN": secret}
    done = qianka(folder, *arguments, prefix=shell, env=around)
    assert done.returncode == 0, done.stdout

    run = folder / "runs" / "tiny"
    (log,) = run.glob("synth/*/log")
    assert [oct(stat.S_IMODE(path.stat().st_mode)) for path in (run, log)] == ["0o700", "0o700"]
    (script,) = log.glob("*_submission.sh")
    job = script.name.split("_")[0]
    cluster.wait(job, "COMPLETED")  # its last files are moved and removed
    text = [path for path in run.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert text == []
    end = time.monotonic() + 60
    while "submitit" not in cluster.run("sacct", "-j", job, "--batch-script"):  # slurmdbd gets it a little later
        assert time.monotonic() < end, "the accounting keeps scripts and environments here"
        time.sleep(0.5)
    shown = [
        cluster.run("scontrol", "show", "job", "-o", job),
        cluster.run("squeue", "--states=all", "-h", "-j", job, "-o", "%all"),
        cluster.run("sacct", "-P", "-j", job, "-o", "all"),
        cluster.run("sacct", "-j", job, "--batch-script"),
        cluster.run("sacct", "-j", job, "--env-vars"),
    ]
    assert [answer for answer in shown if secret in answer] == []
    assert "SLURM_CPU_BIND" not in shown[4] and "SLURM_NTASKS=9" not in shown[4], "they are of a job around this one"
    assert "PATH=" in shown[4]
