"""Pairs of cards at every level of the topology, and a bandwidth judged by its range."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from slurm.health.links import Pair, judge_pairs, pair_up, reduce_pairs, rounds
from slurm.health.torch import Said
from slurm.topology.site import LEVELS, Topology


def topology(sizes, cards=8, islands=2, **links):
    names = iter(f"n{number}" for number in range(1000))
    supernodes = [
        {"name": f"s{place}", "nodes": [next(names) for _ in range(size)]} for place, size in enumerate(sizes)
    ]
    return Topology.model_validate({"cards": cards, "islands": islands, "supernodes": supernodes, "links": links})


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    shape=st.sampled_from([(1, 1), (2, 1), (8, 2), (4, 4)]),
    chosen=st.data(),
)
def test_at_every_level_pairs_are_of_that_level_and_nobody_is_in_two(sizes, shape, chosen):
    site = topology(sizes, *shape)
    nodes = chosen.draw(st.lists(st.sampled_from([*site.home, "stranger"]), min_size=1, unique=True))
    pairs = pair_up(nodes, site)
    for level in LEVELS:
        here = [pair for pair in pairs if pair.level == level]
        ends = [end for pair in here for end in (pair.one, pair.other)]
        assert len(ends) == len(set(ends))
        assert all(site.level_of_cards(pair.one, pair.other) == level for pair in here)
        assert {end[0] for end in ends} <= set(nodes)
        if level in ("supernode", "between_supernodes"):
            paired = {end[0] for end in ends}
            left = [node for node in nodes if node not in paired]
            assert not any(site.level(one, other) == level for one in left for other in left if one != other)


def test_both_ends_of_a_pair_have_the_same_round(tmp_path):
    pairs = pair_up(["n0", "n1", "n2"], topology([2, 1]))
    ends = [
        each
        for node in ("n0", "n1", "n2")
        for rounds_ in rounds(node, pairs, tmp_path, None).values()
        for each in rounds_
    ]
    for number in range(len(pairs)):
        meeting = [each["rank"] for each in ends if each["rendezvous"] == str(tmp_path / f"pair-{number}.json")]
        assert sorted(meeting) == [0, 1]


def test_without_a_topology_nodes_are_paired_and_nothing_is_expected(tmp_path):
    pairs = pair_up(["a", "b", "c"], None)
    assert pairs == [Pair("two nodes", ("a", 0), ("b", 0))]


def judged(gb_s, kind="cuda", right=True, **links):
    site = topology([2], **links)
    mine = rounds("n0", [Pair("supernode", ("n0", 0), ("n1", 0))], Path("/x"), None)[0]
    line = {"what": "pair", "level": "supernode", "peer": "n1 card 0", "right": right, "gb_s": gb_s, "kind": kind}
    (finding,) = judge_pairs("n0", mine, Said([line], "", False), site)
    return finding


def test_a_bandwidth_is_judged_by_the_range_of_its_links():
    link = {"name": "MetaXLink", "all_reduce": [40, 80]}
    assert judged(50, supernode=link).verdict == "ok"
    assert judged(39, supernode=link).verdict == "bad"
    assert judged(39, supernode=link).measured == "with n1 card 0 over MetaXLink: 39 GB/s, expected 40 to 80"
    assert judged(90, supernode=link).verdict == "unknown"
    assert judged(50, right=False, supernode=link).verdict == "bad"


def test_without_a_range_there_is_a_figure_and_no_verdict():
    for finding in (judged(50), judged(50, supernode={"name": "MetaXLink"})):
        assert finding.verdict == "unknown"
        assert finding.measured == "with n1 card 0: 50 GB/s; no range in the topology file"


def test_a_figure_of_cpus_is_not_held_against_a_range_of_cards():
    finding = judged(0.5, kind="cpu", supernode={"name": "MetaXLink", "all_reduce": [40, 80]})
    assert finding.verdict == "unknown"


def test_a_pair_that_did_not_meet_is_bad():
    mine = rounds("a", [Pair("two nodes", ("a", 0), ("b", 0))], Path("/x"), None)[0]
    (finding,) = judge_pairs("a", mine, Said([], "TimeoutError: rank 1", False), None)
    assert finding.verdict == "bad"
    assert "with b card 0: TimeoutError" in finding.measured


def test_two_processes_measure_a_real_all_reduce(tmp_path):
    pair = Pair("two nodes", ("localhost", 0), ("localhost", 1))
    mine = rounds("localhost", [pair], tmp_path, "lo")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(reduce_pairs, (mine[0], mine[1]))
    assert (first.trouble, second.trouble) == ("", "")
    (finding,) = judge_pairs("localhost", mine[0], first, None)
    assert finding.verdict == "unknown"
    assert "GB/s by gloo on CPUs" in finding.measured
    assert judge_pairs("localhost", mine[1], second, None) == []  # the first rank speaks for both
