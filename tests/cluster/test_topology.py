"""The topology of the real cluster, 2 leaf switches with 2 nodes of 8 cards: drafted, checked, and used by jobs."""

import pytest

from checkpoints.manifest import Result
from slurm.record import read_record
from slurm.topology.agree import check_against_slurm
from slurm.topology.options import sbatch_options
from slurm.topology.planner import Need, plan
from slurm.topology.site import load

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

ON_SLURM = ("slurm.executor=slurm", "slurm.interface=lo", "slurm.topology=site.yaml")
TWISTED = """\
cards: 8
supernodes:
  - {name: a, nodes: "mx[0,2]"}
  - {name: b, nodes: "mx[1,3]"}
"""


@pytest.fixture
def site(cluster, qianka, tmp_path, tiny_config):
    """The file as it was drafted, and nothing filled in."""
    (tmp_path / "tiny.yaml").write_text(tiny_config)
    done = qianka(tmp_path, "doctor", "--topology")
    assert done.returncode == 0, done.stdout
    (tmp_path / "site.yaml").write_text(done.stdout)
    return tmp_path / "site.yaml"


def test_a_draft_is_the_cluster_and_a_node_that_is_not_there_ends_the_command_before_a_submit(
    site, cluster, qianka, tmp_path
):
    topology = load(site)
    assert [(supernode.name, supernode.nodes) for supernode in topology.supernodes] == [
        ("sn0", ("mx0", "mx1")),
        ("sn1", ("mx2", "mx3")),
    ]
    assert (topology.cards, topology.scheduler) == (8, "tree")
    assert check_against_slurm(topology) == []
    cluster.run("sbatch", "--test-only", "--nodes=2", "--switches=1@60", "--wrap=true")

    site.write_text(site.read_text().replace("mx[2-3]", "mx[2-4]"))
    done = qianka(tmp_path, "stage", "synth", "tiny.yaml", *ON_SLURM)
    assert done.returncode == 2, done.stdout
    assert "Slurm does not know: mx4; near mx4 are mx3" in done.stdout
    assert cluster.mine() == []


def test_a_job_lands_in_a_supernode_and_one_of_two_shards_its_weights_within_each(site, cluster, qianka, tmp_path):
    assert qianka(tmp_path, "stage", "synth", "tiny.yaml", *ON_SLURM).returncode == 0
    busy = cluster.submit("sleep 120", "--nodelist=mx1", "--exclusive")
    cluster.wait(busy, "RUNNING")

    def trained(nodes: int) -> tuple[str, str, str]:
        """Nodes and log of an sft stage with one rank a node, and what Slurm says that it asked for."""
        shape = (f"slurm.sft.nodes={nodes}", f"sft.steps={nodes}")
        done = qianka(tmp_path, "stage", "sft", "tiny.yaml", *ON_SLURM, *shape)
        assert done.returncode == 0, done.stdout
        record = read_record(tmp_path / "runs/tiny/sft")
        asked = cluster.run("scontrol", "show", "job", record.job_id)
        where = cluster.run("sacct", "-n", "-X", "-P", "-j", record.job_id, "-o", "NodeList")
        return where, done.stdout, asked

    where, log, asked = trained(2)
    assert where == "mx[2-3]"
    assert "Switches=1@00:05:00" in asked  # of the 60 minutes, the site's max_switch_wait leaves 5
    assert "on 2 rank(s), weights sharded over 2 of them" in log
    cluster.run("scancel", busy)

    # Supernodes that Slurm knows nothing of, and whose nodes it does not number one after the other.
    site.write_text(TWISTED)
    where, log, _ = trained(4)
    assert where == "mx[0-3]"
    assert "note: slurm.topology: Slurm has topology/tree" in log
    assert "on 4 rank(s), weights sharded over 2 of them" in log
    assert Result(tmp_path / "runs/tiny/sft/manifest.json")


@pytest.fixture
def features(cluster):
    """Each node has its supernode as a feature, and Slurm's tree is not looked at."""
    for nodes, name in (("mx[0-1]", "sn0"), ("mx[2-3]", "sn1")):
        cluster.run("scontrol", "update", f"nodename={nodes}", f"AvailableFeatures={name}")
    yield
    cluster.run("scontrol", "update", "nodename=mx[0-3]", "AvailableFeatures=", "ActiveFeatures=")


def test_where_features_say_the_supernode_a_job_waits_for_any_one_of_them(site, features, cluster):
    site.write_text(site.read_text().replace("scheduler: tree", "scheduler: features"))
    topology = load(site)
    assert not [note for note in check_against_slurm(topology) if "tree" not in note]
    options = [f"--{name}={value}" for name, value in sbatch_options(plan(topology, Need(2, 8))).items()]
    assert options == ["--constraint=[sn0|sn1]"]

    blockers = [
        cluster.submit(f"sleep {s}", f"--nodelist={node}", "--exclusive") for node, s in (("mx0", 240), ("mx2", 20))
    ]
    for blocker in blockers:
        cluster.wait(blocker, "RUNNING")
    job = cluster.submit("sleep 1", "--nodes=2", "--exclusive", *options)
    cluster.wait(job, "COMPLETED", seconds=120)  # mx1 and mx3 were free all the time
    assert cluster.run("sacct", "-n", "-X", "-P", "-j", job, "-o", "NodeList") == "mx[2-3]"
