"""The topology file: what it says, and the errors of one that says it wrong."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slurm.topology.site import load

KEYS = ["cards", "islands", "supernodes", "links", "name", "nodes", "pod", "island", "all_reduce", "scheduler", "x"]
GOOD = """\
cards: 8
islands: 2
scheduler: tree
supernodes:
  - {name: sn0, nodes: "mx[0-1]", pod: a}
  - name: sn1
    nodes: [mx2, "mx[3-4]"]
    pod: a
    cards: 16
  - {name: sn2, nodes: mx5, pod: b}
links:
  island: {name: MetaXLink, all_reduce: [100, 150], source: measured}
  supernode: {name: optical link}
nics: [eth0, "mlx5_0, mlx5_1"]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "site.yaml"
    path.write_text(text)
    return path


def test_a_file_says_where_each_card_is_and_what_is_expected_of_the_links(tmp_path):
    topology = load(written(tmp_path, GOOD))
    assert topology.num_cards == 2 * 8 + 3 * 16 + 8
    assert [supernode.nodes for supernode in topology.supernodes] == [("mx0", "mx1"), ("mx2", "mx3", "mx4"), ("mx5",)]
    assert topology.level_of_cards(("mx0", 0), ("mx0", 3)) == "island"
    assert topology.level_of_cards(("mx0", 3), ("mx0", 4)) == "node"
    assert topology.level_of_cards(("mx2", 4), ("mx2", 7)) == "island"
    assert topology.level("mx0", "mx1") == "supernode"
    assert topology.level("mx0", "mx2") == "between_supernodes"
    assert topology.level("mx0", "mx5") == "between_pods"
    assert topology.level("mx0", "unheard-of") == "between_pods"
    assert topology.expected("island") == (100, 150)
    assert topology.expected("supernode") is None
    assert topology.expected("between_pods") is None
    assert topology.link_name("supernode") == "optical link"
    assert topology.link_name("between_pods") == "an unknown link between pods"
    undivided = topology.model_copy(update={"islands": 1})
    assert undivided.level_of_cards(("mx0", 0), ("mx0", 3)) == "node"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mx5, pod", "mx1, pod", r"site.yaml: the node mx1 is here 2 times \(sn0, sn2\); each has one place"),
        ('"mx[0-1]"', '"mx[0-1],mx0"', r"the node mx0 is here 2 times \(sn0\)"),
        ('"mx[0-1]"', '""', r"site.yaml:5: `supernodes.0.nodes`: .* at least 1 item"),
        ('"mx[0-1]"', '"mx[1-0]"', r"site.yaml:5: `supernodes.0.nodes`: 'mx\[1-0\]' is not a node list"),
        ("name: sn2", "name: sn0", "the supernode sn0 is here 2 times; each has one place"),
        ("pod: b", "cards: 8", "sn0 has a pod and sn2 has none"),
        ("    cards: 16", "    cards: 15", "sn1: 15 cards are not 2 islands of one size"),
        ("    cards: 16", "    card: 16", r"site.yaml:9: `supernodes.1.card`: unknown key; did you mean `cards`\?"),
        ("  island:", "  rack:", "site.yaml:12: `links.rack`: unknown key. Valid: island, node, supernode, between_su"),
        ("[100, 150]", "[150, 100]", r"site.yaml:12: `links.island`: all_reduce \[150.0, 100.0\] is no range"),
        ("[100, 150]", "[100]", "site.yaml:12: `links.island.all_reduce.1`: Field required"),
        ("cards: 8\n", "cards: many\n", "site.yaml:1: `cards`: Input should be"),
        ("scheduler: tree", "scheduler: trees", "site.yaml:3: `scheduler`: Input should be 'tree', 'block'"),
        ("supernodes:", "nodes:", r"site.yaml: `supernodes`: Field required"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(tmp_path, old, new, message):
    assert GOOD.count(old) >= 1
    with pytest.raises(ValueError, match=message):
        load(written(tmp_path, GOOD.replace(old, new, 1)))


def test_what_is_no_topology_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ValueError, match=r"absent.yaml: No such file or directory; `qianka doctor --topology`"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(ValueError, match="is not YAML"):
        load(written(tmp_path, "supernodes: ]"))
    with pytest.raises(ValueError, match="is no topology file"):
        load(written(tmp_path, "- sn0"))
    written(tmp_path, "").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="site.yaml is not YAML"):
        load(tmp_path / "site.yaml")


VALUES = st.recursive(
    st.none()
    | st.integers(-3, 20)
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.sampled_from(["mx[0-3]", "mx0", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=15,
)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
def test_every_other_file_is_an_error_that_names_it(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_text(yaml.safe_dump(values))
    try:
        assert load(path).num_cards > 0
    except ValueError as error:
        assert all("fuzzed.yaml" in line for line in str(error).splitlines())
