"""Drafts from what Slurm says in its several formats, and files that do not agree with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.query.answers import read_cards
from slurm.query.queue import NoAnswer
from slurm.topology import agree
from slurm.topology.cluster import Network, read_nodes, read_topology
from slurm.topology.draft import draft, draft_from
from slurm.topology.site import Topology, load

TREE = """\
SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=mx[00-01]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=mx[02-03]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=mx[04-05],login
SwitchName=groupa Level=1 LinkSpeed=1 Nodes=mx[00-03] Switches=leaf[0-1]
SwitchName=groupb Level=1 LinkSpeed=1 Nodes=mx[04-05],login Switches=leaf2
SwitchName=top Level=2 LinkSpeed=1 Nodes=mx[00-05],login Switches=groupa,groupb
"""
BLOCK = """\
BlockName=b0 BlockIndex=0 Nodes=mx[00-01] BlockSize=2
BlockName=b1 BlockIndex=1 Nodes=mx[02-03] BlockSize=2
BlockName=b2 BlockIndex=2 Nodes=mx[04-05] BlockSize=2
AggregatedBlock=b[0-1] BlockIndex=3 Nodes=mx[00-03] BlockSize=4
"""


def node(name: str, gres: str = "gpu:8", features: str = "(null)", partitions: str = "main") -> str:
    """A line of `scontrol show node --oneliner`, as Slurm 22.05 and 23.11 print it."""
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=32  CPUAlloc=0 CPUTot=64 AvailableFeatures={features} "
        f"ActiveFeatures={features} Gres={gres} NodeAddr=10.0.0.1 OS=Linux 6.1.0 #1 SMP @0  RealMemory=512000 "
        f"State=IDLE+CLOUD Partitions={partitions} Comment=has gpu:99 CfgTRES=cpu=64,gres/gpu=8 AllocTRES="
    )


NODES = "\n".join([*(node(f"mx{number:02}") for number in range(6)), node("login", "(null)")])


def drafted(tmp_path, nodes: str, topology: str) -> tuple[str, Topology]:
    """The draft as it stands: it has to load."""
    text = draft_from(read_nodes(nodes), read_topology(topology))
    (tmp_path / "site.yaml").write_text(text)
    return text, load(tmp_path / "site.yaml")


def test_the_cards_of_a_node_are_those_that_the_check_before_a_submit_counts():
    gres = ("gpu:c550", "gpu:8(S:0,3)", "gpu:c550:4(S:0-1),gpu:c500:4", "(null)")
    found = read_nodes("\n".join(node(f"mx{number}", each) for number, each in enumerate(gres)))
    assert [each.cards for each in found.values()] == [read_cards(each) for each in gres] == [1, 8, 8, 0]


def test_leaf_switches_become_supernodes_and_switches_above_them_pods(tmp_path):
    text, topology = drafted(tmp_path, NODES, TREE)
    assert topology.scheduler == "tree"
    assert [(s.name, s.nodes, s.pod) for s in topology.supernodes] == [
        ("leaf0", ("mx00", "mx01"), "groupa"),
        ("leaf1", ("mx02", "mx03"), "groupa"),
        ("leaf2", ("mx04", "mx05"), "groupb"),
    ]
    assert topology.cards == 8
    assert "# login: no gpu Gres, left out" in text
    assert "guess: each leaf switch is a supernode" in text


def test_one_spine_over_all_leaves_is_no_pod(tmp_path):
    tree = "\n".join([*TREE.splitlines()[:3], "SwitchName=spine Level=1 Nodes=mx[00-05],login Switches=leaf[0-2]"])
    assert {supernode.pod for supernode in drafted(tmp_path, NODES, tree)[1].supernodes} == {None}


def test_blocks_become_supernodes(tmp_path):
    text, topology = drafted(tmp_path, NODES, BLOCK)
    assert topology.scheduler == "block"
    assert [(s.name, s.nodes) for s in topology.supernodes] == [
        ("b0", ("mx00", "mx01")),
        ("b1", ("mx02", "mx03")),
        ("b2", ("mx04", "mx05")),
    ]
    assert "guess: each block is a supernode" in text


def test_without_a_topology_plugin_features_that_divide_the_nodes_become_supernodes(tmp_path):
    nodes = "\n".join(node(f"mx{n}", "gpu:c550:8(S:0-1)", f"c550,gen2,rack{n // 2},sn{n // 4}") for n in range(8))
    text, topology = drafted(tmp_path, nodes, "")
    assert topology.scheduler == "features"
    assert [(s.name, s.nodes) for s in topology.supernodes] == [
        ("sn0", ("mx0", "mx1", "mx2", "mx3")),
        ("sn1", ("mx4", "mx5", "mx6", "mx7")),
    ]
    assert "guess: the features sn... of the nodes" in text


def test_without_any_hint_a_partition_is_one_supernode_and_the_draft_says_so(tmp_path):
    nodes = "\n".join(
        [node("mx0", partitions="big,all"), node("mx1", partitions="big"), node("c0", partitions="small")]
    )
    text, topology = drafted(tmp_path, nodes, "")
    assert topology.scheduler == "none"
    assert [(s.name, s.nodes) for s in topology.supernodes] == [("big", ("mx0", "mx1")), ("small", ("c0",))]
    assert "divide the nodes of each partition into supernodes" in text


def test_cards_are_counted_from_gres_and_odd_nodes_are_left_out_with_a_word(tmp_path):
    gres = ["gpu:a:4,gpu:b:4", "gpu:8", "gpu:16(S:0-1)", "gpu:16", "gpu:8", "gpu:4"]
    text, topology = drafted(tmp_path, "\n".join(node(f"mx{n:02}", gres[n]) for n in range(6)), BLOCK)
    assert [(topology.cards_of(s), s.nodes) for s in topology.supernodes] == [
        (8, ("mx00", "mx01")),
        (16, ("mx02", "mx03")),
        (8, ("mx04",)),
    ]
    assert "# mx05: not the 8 cards of the rest of b2, left out" in text


def test_where_slurm_counts_no_cards_their_number_is_a_guess_to_fill_in(tmp_path):
    text, topology = drafted(tmp_path, "\n".join(node(f"mx{n:02}", "(null)") for n in range(6)), BLOCK)
    assert topology.cards == 1
    assert "guess: Slurm names no gpu Gres" in text


def test_a_node_of_two_switches_has_one_place_and_a_node_of_none_is_told(tmp_path):
    tree = (
        "SwitchName=a Level=0 Nodes=mx[00-02]\nSwitchName=b Level=0 Nodes=mx[02-04]\nSwitchName=c Level=0 Nodes=login"
    )
    text, topology = drafted(tmp_path, NODES, tree)
    assert [s.nodes for s in topology.supernodes] == [("mx00", "mx01", "mx02"), ("mx03", "mx04")]
    for comment in ("# b: mx02 are above already", "# c: no node with cards", "# mx05: in none of them"):
        assert comment in text


def checked(monkeypatch, topology: Topology, network: str = TREE) -> list[str]:
    monkeypatch.setattr(agree, "ask_slurm", lambda seconds: (read_nodes(NODES), read_topology(network)))
    return agree.check_against_slurm(topology)


def test_a_draft_agrees_with_the_cluster_that_it_was_drafted_from(tmp_path, monkeypatch):
    for network in (TREE, BLOCK):
        assert checked(monkeypatch, drafted(tmp_path, NODES, network)[1], network) == []


def test_a_file_that_does_not_agree_is_an_error_that_names_the_nodes(tmp_path, monkeypatch):
    _, good = drafted(tmp_path, NODES, TREE)

    def changed(old: str, new: str) -> Topology:
        return Topology.model_validate_json(good.model_dump_json().replace(old, new))

    with pytest.raises(ValueError, match=r"Slurm does not know: mx07; near mx07 are .*mx0\d"):
        checked(monkeypatch, changed('"mx05"', '"mx07"'))
    with pytest.raises(ValueError, match=r"mx\[00-01\] of leaf0: 4 cards by the file, but 8 by Slurm's Gres"):
        checked(monkeypatch, changed('"cards":8', '"cards":4'))
    with pytest.raises(ValueError, match=r"no leaf switch of `scontrol show topology` has all nodes of leaf0"):
        supernodes = [{"name": "leaf0", "nodes": "mx[00,02]"}]
        checked(monkeypatch, Topology.model_validate({"cards": 8, "scheduler": "tree", "supernodes": supernodes}))
    with pytest.raises(ValueError, match="`scheduler` is tree, but `scontrol show topology` shows block"):
        checked(monkeypatch, good, BLOCK)
    with pytest.raises(ValueError, match=r"features, but mx\[00-05\] have none with the name of their supernode"):
        checked(monkeypatch, good.model_copy(update={"scheduler": "features"}))


def test_what_the_file_does_not_say_is_a_note(tmp_path, monkeypatch):
    _, good = drafted(tmp_path, NODES, TREE)
    part = good.model_copy(update={"supernodes": good.supernodes[:2], "scheduler": "none"})
    assert checked(monkeypatch, part) == [
        "slurm.topology does not place mx[04-05]; a rank there counts as far from all others",
        "slurm.topology: Slurm has topology/tree; `scheduler: tree` lets jobs ask for it",
    ]


@pytest.mark.parametrize("name", ["007", "on", "1e3", "a'b", "rack:1", "null", "sn-0.1"])
def test_a_name_stays_the_name_that_slurm_has(tmp_path, name):
    _, topology = drafted(tmp_path, NODES, f"BlockName={name} BlockIndex=0 Nodes=mx[00-05] BlockSize=6")
    assert [supernode.name for supernode in topology.supernodes] == [name]


def test_without_slurm_there_is_no_draft(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoAnswer, match="scontrol"):
        draft()


def test_a_slurm_that_calls_it_an_error_that_it_has_no_topology_has_none(monkeypatch, tmp_path):
    scontrol = tmp_path / "scontrol"
    lines = "\n".join(node(f"mx{n}") for n in range(2))
    says = 'echo "scontrol: error: No topology information available" >&2; exit 1'
    scontrol.write_text(f"#!/bin/sh\n[ $2 = topology ] && {{ {says}; }}\ncat <<'END'\n{lines}\nEND\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert '- {name: main, nodes: "mx[0-1]"}' in draft()
    scontrol.write_text(scontrol.read_text().replace("No topology", "Unable to contact slurm controller"))
    with pytest.raises(NoAnswer, match="Unable to contact"):
        draft()


def test_what_is_not_understood_of_the_network_is_left_out():
    assert read_topology("SomeNew=thing Nodes=mx0\n\nnot even this") == Network("none")
    assert read_topology("SwitchName=a Level=0 Nodes=(null)\nSwitchName=b Level=0 Nodes=mx[") == Network("none")


LINE = st.text(alphabet="mx0123[]-,()=: \n", max_size=30)
KEY = st.sampled_from(["NodeName=", "SwitchName=", "BlockName=", "AggregatedBlock=", "Nodes=", "Level=", "Gres=gpu:"])


@given(st.lists(st.tuples(KEY, LINE), max_size=12))
def test_no_text_of_slurm_breaks_the_draft(words):
    text = " ".join(key + value for key, value in words)
    assert draft_from(read_nodes(text), read_topology(text)).startswith("# Drafted by")
