"""Properties of plans over random sites and needs."""

import time
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slurm.config import ResourcesConfig
from slurm.topology.links import loads
from slurm.topology.plan import Plan
from slurm.topology.planner import Need, arrange, plan, rank_order
from slurm.topology.site import LEVELS, Supernode, Topology


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    pods = draw(st.integers(0, 3))
    supernodes, node = [], 0
    for index in range(draw(st.integers(1, 6))):
        size, cards = draw(st.integers(1, 9)), draw(st.sampled_from([None, 2, 4, 8, 16]))
        supernodes.append(
            Supernode(
                name=f"sn{index}",
                nodes=tuple(f"mx{number}" for number in range(node, node + size)),
                pod=f"pod{draw(st.integers(1, pods))}" if pods else None,
                cards=cards,
                islands=draw(st.sampled_from([1, 2])),
            )
        )
        node += size
    return Topology(cards=draw(st.sampled_from([2, 6, 8])), supernodes=tuple(supernodes))


def fitting(topology: Topology, tasks: int, excluded: frozenset[str]) -> dict[str, int]:
    """Usable nodes by supernode."""
    return {
        supernode.name: len([node for node in supernode.nodes if node not in excluded])
        for supernode in topology.supernodes
        if topology.cards_of(supernode) >= tasks
    }


@st.composite
def cases(draw: st.DrawFn) -> tuple[Topology, Need]:
    topology = draw(topologies())
    tasks = draw(st.integers(1, max(map(topology.cards_of, topology.supernodes))))
    excluded = frozenset(draw(st.lists(st.sampled_from(sorted(topology.home)), max_size=3)))
    usable = sum(fitting(topology, tasks, excluded).values())
    assume(usable)
    nodes = draw(st.integers(1, usable))
    ways = draw(st.sampled_from([n for n in range(1, nodes * tasks + 1) if nodes * tasks % n == 0]))
    sizes = [n for n in range(1, nodes * tasks // ways + 1) if nodes * tasks // ways % n == 0]
    return topology, Need(nodes, tasks, ways, draw(st.none() | st.sampled_from(sizes)), excluded)


def homes(planned: Plan, group: tuple[int, ...]) -> set[int]:
    return {planned.topology.home[planned.nodes[rank // planned.tasks_per_node]] for rank in group}


@given(cases())
def test_every_rank_is_placed_once_on_a_card_of_its_own(case):
    topology, need = case
    planned = plan(topology, need)
    assert len(planned.nodes) == len(set(planned.nodes)) == need.nodes
    assert not set(planned.nodes) & need.excluded
    for groups in (planned.tensor_groups, planned.shard_groups, planned.replica_groups):
        assert sorted(rank for group in groups for rank in group) == list(range(planned.world_size))
    for node in planned.nodes:
        assert topology.cards_of(topology.supernodes[topology.home[node]]) >= need.tasks_per_node
    assert plan(topology, need) == planned


@given(cases())
def test_ranks_of_a_supernode_are_consecutive(case):
    planned = plan(*case)
    places = [planned.topology.home[node] for node in planned.nodes]
    assert len(set(places)) == 1 + sum(one != other for one, other in pairwise(places))
    pods = [planned.topology.supernodes[place].pod for place in places]
    assert len(set(pods)) == 1 + sum(one != other for one, other in pairwise(pods))


@given(cases())
def test_no_group_crosses_a_supernode_when_it_fits_inside(case):
    topology, need = case
    planned = plan(topology, need)
    free, tasks = fitting(topology, need.tasks_per_node, need.excluded), need.tasks_per_node

    def fits(ranks: int) -> bool:
        """Whether the supernodes have room for all nodes in parts that hold whole groups."""
        parts = (max(n for n in range(size + 1) if n * tasks % ranks == 0) for size in free.values())
        return sum(parts) >= need.nodes

    assert all(len(homes(planned, g)) == 1 for g in planned.shard_groups) or not fits(planned.copy_ranks)
    assert all(len(homes(planned, g)) == 1 for g in planned.tensor_groups) or not fits(need.tensor_parallel)
    if need.shard_ranks is None and fits(need.tensor_parallel):
        larger = [n for n in range(planned.shard_ranks + 1, planned.world_size // need.tensor_parallel + 1)]
        divisors = [n for n in larger if planned.world_size // need.tensor_parallel % n == 0]
        assert not any(fits(n * need.tensor_parallel) for n in divisors)


@given(cases())
def test_a_tensor_parallel_group_stays_in_a_node_or_an_island_that_its_size_divides(case):
    topology, need = case
    planned = plan(topology, need)
    for group in planned.tensor_groups:
        node = planned.nodes[group[0] // need.tasks_per_node]
        home = topology.supernodes[topology.home[node]]
        if need.tasks_per_node % need.tensor_parallel == 0:
            assert group[0] // need.tasks_per_node == group[-1] // need.tasks_per_node
            if topology.cards_of(home) // topology.islands_of(home) % need.tensor_parallel == 0:
                assert planned.widest([group]) == "island" or topology.islands_of(home) == 1


@given(cases())
def test_new_weights_reach_each_node_once_and_enter_each_supernode_and_pod_once(case):
    planned = plan(*case)
    topology, reached = planned.topology, {planned.nodes[0]}
    for hop in planned.relay:
        assert hop.source in reached and hop.target not in reached
        reached.add(hop.target)
    assert reached == set(planned.nodes)
    levels = [hop.level for hop in planned.relay]
    pods = {topology.supernodes[topology.home[node]].pod for node in planned.nodes}
    assert levels.count("between_supernodes") + levels.count("between_pods") == len(planned.supernodes) - 1
    assert levels.count("between_pods") == len(pods) - 1


@given(cases())
def test_the_links_of_each_collective_add_up(case):
    planned = plan(*case)
    found = {load.name: load for load in loads(planned)}
    for name, groups in (
        ("FSDP all-gather", planned.shard_groups),
        ("FSDP reduce-scatter", planned.shard_groups),
        ("gradient all-reduce", planned.replica_groups),
        ("tensor all-reduce", planned.tensor_groups),
    ):
        count = sum(len(group) for group in groups if len(group) > 1)
        assert (sum(found[name].links.values()) if name in found else 0) == count
        if name in found:
            assert max(found[name].links, key=LEVELS.index) == planned.widest(groups)
    assert (sum(found["weights relay"].links.values()) if len(planned.nodes) > 1 else 0) == len(planned.nodes) - 1
    assert all(load.share is None or 0 < load.share <= 2 for load in found.values())


@given(cases())
def test_as_few_supernodes_as_can_hold_it_when_groups_do_not_matter(case):
    topology, need = case
    planned = plan(topology, Need(need.nodes, need.tasks_per_node, shard_ranks=1, excluded=need.excluded))
    room, fewest = 0, 0
    for size in sorted(fitting(topology, need.tasks_per_node, need.excluded).values(), reverse=True):
        if room < need.nodes:
            room, fewest = room + size, fewest + 1
    assert len(planned.supernodes) == fewest


@given(cases(), st.randoms(use_true_random=False))
def test_an_allocation_keeps_task_0_as_rank_0_and_its_groups_within_supernodes(case, random):
    topology, need = case
    nodes = random.sample([*sorted(topology.home), "new1", "new2"], min(need.nodes, len(topology.home)))
    tasks = need.tasks_per_node
    order = rank_order(topology, nodes, tasks)
    assert sorted(order) == list(range(len(nodes) * tasks))
    assert order[0] == 0
    planned = arrange(topology, nodes, tasks)
    for task, rank in enumerate(order):
        assert planned.nodes[rank // tasks] == nodes[task // tasks]
        assert rank % tasks == task % tasks
    runs = [planned.topology.home.get(node, node) for node in planned.nodes]
    assert len(set(runs)) == 1 + sum(one != other for one, other in pairwise(runs))
    for group in planned.shard_groups:
        assert len({runs[rank // tasks] for rank in group}) == 1
    assert all(f"{node} is not in the topology file" in planned.notes for node in nodes if node.startswith("new"))


def site(sizes: list[int], **changed: object) -> Topology:
    numbers = iter(range(sum(sizes)))
    supernodes = [
        {"name": f"sn{i}", "nodes": [f"mx{next(numbers)}" for _ in range(size)]} for i, size in enumerate(sizes)
    ]
    return Topology.model_validate({"cards": 8, "supernodes": supernodes, **changed})


def test_a_job_takes_the_supernode_that_it_leaves_fewest_nodes_of():
    assert set(plan(site([8, 4, 6]), Need(4, 8)).supernodes) == {"sn1"}
    assert set(plan(site([8, 4, 6]), Need(5, 8)).supernodes) == {"sn2"}
    planned = plan(site([8, 8, 4]), Need(12, 8, shard_ranks=32))
    assert {name: len(nodes) for name, nodes in planned.supernodes.items()} == {"sn0": 8, "sn2": 4}


def test_avoided_nodes_make_smaller_groups_and_not_crossing_ones():
    planned = plan(site([8, 8, 8, 8]), Need(16, 8, excluded=frozenset({"mx0", "mx8", "mx16", "mx24"})))
    assert planned.shard_ranks == 32
    assert [len(nodes) for nodes in planned.supernodes.values()] == [4, 4, 4, 4]
    assert planned.notes == []


def test_sizes_that_do_not_fit_are_errors_that_say_what_would():
    topology = site([8, 8])
    with pytest.raises(ValueError, match=r"17 nodes with 8 cards each are 136 cards, but the site has 16 such nodes"):
        plan(topology, Need(17, 8))
    with pytest.raises(ValueError, match=r"site has 15 such nodes without mx3, which the run avoids \(excluded"):
        plan(topology, Need(16, 8, excluded=frozenset({"mx3", "gone"})))
    with pytest.raises(ValueError, match="9 tasks a node need as many cards, but the largest node of the site has 8"):
        plan(topology, Need(1, 9))
    with pytest.raises(ValueError, match="shard_ranks is 48, but the 64 ranks are no multiple of it; 32 is near"):
        plan(topology, Need(8, 8, shard_ranks=48))
    with pytest.raises(ValueError, match="3 tensor-parallel ranks do not divide the 64 ranks"):
        arrange(topology, [f"mx{n}" for n in range(8)], 8, ways=3)


def test_what_crosses_is_said():
    topology = site([8, 8], islands=2)
    assert plan(topology, Need(8, 8)).notes == []
    assert "tensor-parallel groups of 16 cross nodes" in plan(topology, Need(8, 8, 16)).notes[0]
    assert "groups of 8 cross the islands" in plan(topology, Need(8, 8, 8)).notes[0]
    assert "FSDP groups of 128 cross supernodes" in plan(topology, Need(16, 8, shard_ranks=128)).notes[0]
    assert plan(topology, Need(2, 6)).notes == []
    assert plan(topology, Need(2, 6)).idle_cards == 4


def test_the_need_of_a_stage_is_its_resources():
    shape = ResourcesConfig(nodes=4, tasks_per_node=8, shard_ranks=16)
    assert Need.of(shape, {"mx1": "why"}) == Need(4, 8, 1, 16, frozenset({"mx1"}))


def test_thousands_of_cards_are_planned_at_once():
    topology = site([8] * 512)
    began = time.process_time()
    planned = plan(topology, Need(512 * 8, 8))
    assert loads(planned) and planned.relay
    assert time.process_time() - began < 5
