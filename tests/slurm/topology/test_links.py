"""How many links of each class a plan loads, and with how much, counted by hand."""

import pytest

from slurm.topology.links import all_gather_share, all_reduce_share, loads
from slurm.topology.options import option_notes, sbatch_options
from slurm.topology.planner import Need, plan
from slurm.topology.site import Topology


def site(supernodes: int, nodes: int, **changed: object) -> Topology:
    rows = [
        {"name": f"sn{s}", "nodes": [f"mx{n}" for n in range(s * nodes, (s + 1) * nodes)]} for s in range(supernodes)
    ]
    return Topology.model_validate({"cards": 8, "islands": 2, "supernodes": rows, **changed})


def test_two_supernodes_of_two_nodes():
    planned = plan(site(2, 2), Need(4, 8))
    found = {load.name: load for load in loads(planned)}
    # A ring of 16 ranks on 2 nodes with 2 islands each: 3 links in each island, one between the islands of a node, one
    # from node to node, one back.
    ring = {"island": 2 * 2 * 2 * 3, "node": 2 * 2, "supernode": 2 * 2}
    assert found["FSDP all-gather"].links == found["FSDP reduce-scatter"].links == ring
    assert found["FSDP all-gather"].share == pytest.approx(15 / 16)
    # 16 pairs of ranks with the same shard, one link each way; half of a 16th of the model is sent twice.
    assert found["gradient all-reduce"].links == {"between_supernodes": 32}
    assert found["gradient all-reduce"].share == pytest.approx(1 / 16)
    assert found["weights relay"].links == {"supernode": 2, "between_supernodes": 1}
    assert "tensor all-reduce" not in found


def test_tensor_parallel_groups_stay_on_the_fastest_links_and_divide_the_model():
    planned = plan(site(2, 2), Need(4, 8, tensor_parallel=4))
    found = {load.name: load for load in loads(planned)}
    assert found["tensor all-reduce"].links == {"island": 32}
    assert found["tensor all-reduce"].share is None
    assert planned.shard_ranks == 4
    assert found["FSDP all-gather"].links == {"node": 16, "supernode": 16}
    assert found["FSDP all-gather"].share == pytest.approx(3 / 4 / 4)


def test_rings_send_all_but_one_part():
    assert all_gather_share(1) == all_reduce_share(1) == 0
    assert all_gather_share(4) == 3 / 4
    assert all_reduce_share(4) == 6 / 4


@pytest.mark.parametrize(
    ("scheduler", "nodes", "options", "note"),
    [
        ("tree", 3, {"switches": "1@60"}, None),
        ("tree", 8, {"switches": "2@60"}, None),
        ("tree", 1, {}, None),
        ("block", 8, {"segment": 4}, None),
        ("block", 3, {"segment": 3}, None),
        ("features", 3, {"constraint": "[sn0|sn1|sn2]"}, None),
        ("features", 8, {}, "features cannot ask for several supernodes"),
        ("none", 3, {}, "Slurm knows nothing of the supernodes"),
        ("none", 1, {}, None),
    ],
)
def test_slurm_is_asked_for_any_nodes_that_are_close_and_never_for_particular_ones(scheduler, nodes, options, note):
    planned = plan(site(3, 4, scheduler=scheduler), Need(nodes, 8))
    assert sbatch_options(planned) == options
    notes = option_notes(planned)
    assert [note in line for line in notes] == [True] if note else notes == []
