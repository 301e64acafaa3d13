"""What Slurm's answers mean, in the words of several of its versions, and what is concluded from them."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.ask import check, trial
from slurm.ask.asked import Asked
from slurm.ask.check import check_slurm, feature_names, limits_of_jobs
from slurm.ask.trial import keys_meant
from slurm.config import SlurmConfig
from slurm.query.answers import (
    Association,
    Limits,
    Node,
    read_associations,
    read_cards,
    read_minutes,
    read_nodes,
    read_partitions,
    read_qos,
    read_reservations,
    read_settings,
    read_words,
)
from slurm.query.facts import Facts

PARTITIONS = {
    "22.05": """\
PartitionName=mx AllowGroups=ALL AllowAccounts=lab,course DenyQos=debug AllocNodes=ALL Default=YES QoS=part \
DefaultTime=01:00:00 DisableRootJobs=NO GraceTime=15 Hidden=NO MaxNodes=8 MaxTime=2-00:00:00 MinNodes=0 \
Nodes=mx[0-15] State=UP TotalCPUs=1024 TotalNodes=16 SelectTypeParameters=NONE JobDefaults=(null)""",
    "23.11": """\
PartitionName=mx AllowGroups=ALL AllowAccounts=lab,course AllowQos=ALL AllocNodes=ALL Default=YES QoS=part \
DefaultTime=01:00:00 DisableRootJobs=NO ExclusiveUser=NO ExclusiveTopo=NO GraceTime=15 Hidden=NO MaxNodes=8 \
MaxTime=2-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED MaxCPUsPerSocket=UNLIMITED NodeSets=ALL Nodes=mx[0-15] \
PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO PreemptMode=OFF State=UP TotalCPUs=1024 \
TRES=cpu=1024,mem=8000G,node=16,billing=1024,gres/gpu=128""",
    "24.05": """\
PartitionName=mx AllowGroups=ALL AllowAccounts=lab,course AllowQos=ALL AllocNodes=ALL Default=YES QoS=part \
ResumeTimeout=GLOBAL SuspendTimeout=GLOBAL SuspendTime=GLOBAL PowerDownOnIdle=NO GraceTime=15 MaxNodes=8 \
MaxTime=2-00:00:00 State=UP TotalCPUs=1024 TotalNodes=16 TRES=cpu=1024,gres/gpu=128,gres/gpu:c588=128""",
}


@pytest.mark.parametrize("version", PARTITIONS)
def test_a_partition_is_read_in_the_words_of_each_version(version):
    (mx,) = read_partitions(PARTITIONS[version].splitlines()).values()
    assert (mx.name, mx.state, mx.is_default, mx.qos) == ("mx", "UP", True, "part")
    assert mx.limits == Limits(minutes=2880, nodes=8)
    assert (mx.accounts, mx.denied, mx.allowed_qos) == ({"lab", "course"}, frozenset(), None)
    assert mx.denied_qos == ({"debug"} if version == "22.05" else frozenset())


def test_a_partition_without_limits_has_none():
    (only,) = read_partitions(
        ["PartitionName=x MaxTime=UNLIMITED MaxNodes=UNLIMITED QoS=N/A DenyAccounts=a,b"]
    ).values()
    assert (only.limits, only.qos, only.denied) == (Limits(), None, {"a", "b"})


@pytest.mark.parametrize(
    ("gres", "cards"),
    [
        ("(null)", 0),
        ("", 0),
        ("gpu:8", 8),
        ("gpu:8(S:0-1)", 8),
        ("gpu:c550:8(S:0,3)", 8),
        ("gpu:c550:4(S:0),gpu:c500:4(S:1)", 8),
        ("shard:16,gpu:nvidia_h100_80gb_hbm3:8(S:0-1),nic:4", 8),
        ("gpu", 1),
        ("gpu:c550", 1),
        ("mx:8", 0),
    ],
)
def test_cards_are_those_that_slurm_counts_as_gpu(gres, cards):
    assert read_cards(gres) == cards


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("30:00", 30),
        ("00:30:30", 30.5),
        ("12:00:00", 720),
        ("1-0", 1440),
        ("1-12:30", 2190),
        ("2-00:00:00", 2880),
        ("UNLIMITED", None),
        ("", None),
        ("Partition_Limit", None),
    ],
)
def test_time_limits_are_minutes(text, minutes):
    assert read_minutes(text) == minutes


@given(st.text())
def test_no_text_breaks_a_reader(text):
    """A word that nobody knows is no limit, and a line that nobody knows is passed over."""
    lines = text.splitlines()
    for read in (read_partitions, read_nodes, read_qos, read_associations, read_reservations, read_settings):
        read(lines)
    read_words(text), read_minutes(text), read_cards(text), feature_names(text)


@pytest.mark.parametrize(
    ("constraint", "names"),
    [
        ("a", ["a"]),
        ("a&b|c-1", ["a", "b", "c-1"]),
        ("[rack1*2&rack2*4]", ["rack1", "rack2"]),
        ("(knl&snc4&flat)|haswell", ["knl", "snc4", "flat", "haswell"]),
        ("[sn0|sn1]", ["sn0", "sn1"]),
    ],
)
def test_the_names_in_a_constraint_are_found(constraint, names):
    assert feature_names(constraint) == names


NODES = read_nodes(f"mx{i}|mx|{'drain' if i == 3 else 'idle'}|128|gpu:c588:8(S:0-1)|c588,sn{i // 2}" for i in range(4))
SITE = Facts(
    partitions=read_partitions([PARTITIONS["23.11"]]),
    nodes=NODES,
    qos=read_qos(
        ["normal|||100|500", "short||01:00:00||", "long|PartitionTimeLimit|7-00:00:00||", "part||1-00:00:00|4|"]
    ),
    associations=read_associations(["lab||normal,long|normal|12:00:00||50", "other||normal|normal|||"]),
    accounts=frozenset({"lab", "other", "course"}),
    reservations=frozenset(),
    settings=read_settings(
        ["AccountingStorageEnforce = associations,limits,qos", "MaxJobCount             = 10000", "Slurmctld(s) at x"]
    ),
)
LAX = Facts(**{**SITE.__dict__, "settings": {"AccountingStorageEnforce": "none"}})


@pytest.fixture
def refused(monkeypatch, tmp_path):
    def judge(facts: Facts, **config: object) -> list[str]:
        monkeypatch.setattr(check, "gather", lambda **_: facts)
        monkeypatch.setattr(check, "trials", lambda asked, facts: [])
        try:
            check_slurm(SlurmConfig.model_validate(config), ["rl"], tmp_path)
        except ValueError as error:
            return str(error).splitlines()
        return []

    return judge


def test_an_association_is_read_with_its_limits():
    lab, other = read_associations(["lab||normal,long|normal|12:00:00||50", "other|mx|||||"])
    assert lab == Association("lab", "", frozenset({"normal", "long"}), "normal", Limits(720, None, None, 50))
    assert other.limits == Limits()


def test_an_account_that_is_anothers_is_refused_where_it_matters(refused):
    (told,) = refused(SITE, account="course", rl={"minutes": 9})
    assert told == "slurm.account is 'course', but there is no account of yours course; known: lab, other"
    assert refused(LAX, account="course", rl={"minutes": 9}) == []
    assert "no account of yours labb" in refused(LAX, account="labb", rl={"minutes": 9})[0]


def test_an_account_is_the_same_in_capital_letters(refused):
    """The accounting keeps them in small ones, and takes both."""
    (told,) = refused(SITE, account="LAB", rl={"minutes": 721})
    assert "a job of account lab gets 720 at most" in told
    capital = read_partitions([PARTITIONS["23.11"].replace("lab,course", "Lab,Course")])
    assert refused(Facts(**{**SITE.__dict__, "partitions": capital}), account="laB", rl={"minutes": 9}) == []


def test_the_lowest_limit_of_partition_qos_and_account_is_the_one_that_holds(refused):
    assert refused(LAX, rl={"minutes": 2881})[0].startswith(
        "slurm.rl.minutes is 2881, but a job of partition mx gets 2880 at most"
    )
    qos, account = refused(SITE, account="lab", qos="normal", rl={"minutes": 1441})
    assert "a job of QOS part gets 1440 at most" in qos
    assert "a job of account lab gets 720 at most" in account
    assert refused(LAX, qos="long", rl={"minutes": 9000}) == []


def test_of_two_partitions_one_that_fits_is_enough(refused):
    small = read_partitions(["PartitionName=small MaxTime=10 State=INACTIVE"])
    two = Facts(**{**LAX.__dict__, "partitions": {**LAX.partitions, **small}})
    assert refused(two, partition="small,mx", rl={"minutes": 60}) == []
    assert refused(two, partition="small", rl={"minutes": 60})[:2] == [
        "slurm.partition: partition small takes no jobs, it is inactive; take another one",
        "slurm.rl.minutes is 60, but a job of partition small gets 10 at most; set it to that: the stage commits "
        "before the limit, and goes on when its job is requeued",
    ]
    assert refused(two, account="other", rl={"minutes": 60}) == [
        "slurm.account is 'other', which partition mx does not take; it takes course, lab"
    ]


def test_without_a_default_partition_one_has_to_be_named(refused):
    none = Facts(partitions=read_partitions(["PartitionName=a Default=NO", "PartitionName=b Default=NO"]))
    assert refused(none) == ["slurm.partition: this cluster has no default partition; name one of a, b"]


def test_nodes_out_of_service_are_counted_and_named(refused):
    assert refused(LAX, rl={"nodes": 5}) == [
        "slurm.rl.nodes is 5, but partition mx has 4 nodes, 1 of them out of service"
    ]


def test_how_many_jobs_a_user_may_have_is_told_to_the_doctor():
    assert limits_of_jobs(SITE) == {
        "MaxJobCount": "10000",
        "MaxSubmit of account lab": "50",
        "MaxJobs of QOS normal": "100",
        "MaxSubmit of QOS normal": "500",
        "MaxJobs of QOS part": "4",
    }


def test_a_slurm_that_does_not_answer_in_time_refuses_nothing(tmp_path, monkeypatch):
    for name in ("scontrol", "sinfo", "sacctmgr", "squeue", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for module in ("query.facts", "ask.check", "ask.trial"):
        monkeypatch.setattr(f"slurm.{module}.SECONDS", 0.5)
    start = time.monotonic()
    assert check_slurm(SlurmConfig(partition="nowhere"), ["sft", "rl"], tmp_path) == []
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("said", "refuses"),
    [
        ("allocation failure: Invalid qos specification", True),
        ("Job rejected by the site: name a project with --comment", True),
        ("allocation failure: Requested nodes are busy", False),
        ("allocation failure: Required node not available (down, drained or reserved)", False),
        ("allocation failure: Unable to contact slurm controller (connect failure)", False),
        ("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)", False),
        ("fatal: Could not establish a configuration source", False),
        ("allocation failure: Requested node configuration is not available", False),  # a node is drained
    ],
)
def test_sbatch_is_believed_unless_time_may_cure_it(tmp_path, monkeypatch, said, refuses):
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = trial.trials([Asked.of(SlurmConfig(qos="x"), "rl", tmp_path)], SITE)
    assert bool(found) == refuses
    whole = Facts(nodes=[node for node in NODES if node.in_service], reservations=frozenset())
    certain = "node configuration" in said
    assert bool(trial.trials([Asked.of(SlurmConfig(qos="x"), "rl", tmp_path)], whole)) == (refuses or certain)


def test_the_keys_that_sbatch_may_mean_are_named_with_their_values():
    site = SlurmConfig.model_validate({"qos": "x", "rl": {"constraint": "a", "nodes": 3, "additional": {"mem": "9T"}}})
    asked = Asked.of(site, "rl", Path("/nowhere"))
    assert keys_meant(asked, "Invalid qos specification") == ["slurm.qos=x"]
    assert keys_meant(asked, "Invalid feature specification") == ["slurm.rl.constraint=a"]
    assert keys_meant(asked, "unrecognized option '--mem=9T'") == ["slurm.rl.additional.mem=9T"]
    assert "slurm.rl.nodes=3" in keys_meant(asked, "who knows")


@pytest.mark.parametrize(
    ("state", "works"),
    [
        ("idle", True),
        ("mix-", True),
        ("alloc", True),
        ("resv", True),
        ("down*", False),
        ("idle*", False),
        ("drng", False),
    ],
)
def test_a_node_in_service_is_one_that_takes_jobs(state, works):
    assert Node("mx0", "mx", state, 64, 8, frozenset()).in_service == works
