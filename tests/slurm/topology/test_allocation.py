"""Inside the job: the nodes that Slurm gave, on the site's topology."""

from pathlib import Path

import pytest

from slurm.attempt import JobFile
from slurm.inside.place import make_job, read_place

SITE = """\
cards: 8
supernodes:
  - {name: sn0, nodes: "mx[0-1,4]"}
  - {name: sn1, nodes: "mx[2-3]"}
"""


def job_file(tmp_path: Path, **changed: object) -> JobFile:
    (tmp_path / "site.yaml").write_text(SITE)
    values = {"run": "r", "inputs": {}, "files": {}, "code": {}, "minutes": 10, "tasks_per_node": 2, "cpus": 1}
    return JobFile.model_validate({**values, "topology": str(tmp_path / "site.yaml"), **changed})


def jobs(tmp_path: Path, nodes: list[str], **changed: object) -> list[tuple[int, int | None]]:
    """Rank and FSDP group size of each task, two on each node."""
    file, found = job_file(tmp_path, **changed), []
    for task in range(2 * len(nodes)):
        env = {
            "SLURM_JOB_ID": "42",
            "SLURM_JOB_END_TIME": "1234",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task % 2),
            "SLURM_STEP_NUM_TASKS": str(2 * len(nodes)),
            "SLURM_STEP_TASKS_PER_NODE": f"2(x{len(nodes)})",
            "SLURM_STEP_NODELIST": ",".join(nodes),
            "SLURM_CPUS_ON_NODE": "2",
            "SLURMD_NODENAME": nodes[task // 2],
        }
        place = read_place(env)
        assert place.rank == task
        job = make_job(place, file, tmp_path)
        found.append((job.rank, job.shard_ranks))
    return found


@pytest.fixture(autouse=True)
def the_end_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1234")


def test_ranks_are_consecutive_within_supernodes_and_weights_are_sharded_there(tmp_path):
    assert jobs(tmp_path, ["mx0", "mx1", "mx2", "mx3"]) == [(rank, 4) for rank in range(8)]
    # Slurm sorts mx4 behind the nodes of the other supernode.
    found = jobs(tmp_path, ["mx0", "mx2", "mx3", "mx4"])
    assert [rank for rank, _ in found] == [0, 1, 4, 5, 6, 7, 2, 3]
    assert {shard for _, shard in found} == {4}


def test_the_first_node_keeps_rank_0_whatever_its_supernode(tmp_path):
    assert [rank for rank, _ in jobs(tmp_path, ["mx2", "mx0", "mx3", "mx1"])] == [0, 1, 4, 5, 2, 3, 6, 7]


def test_groups_have_the_planned_size_whichever_nodes_slurm_gave_and_the_log_says_what_crosses(tmp_path, capsys):
    assert {shard for _, shard in jobs(tmp_path, ["mx0", "mx1", "mx2", "mx3"])} == {4}
    assert capsys.readouterr().out == ""
    assert {shard for _, shard in jobs(tmp_path, ["mx0", "mx1", "mx4", "mx2"])} == {4}
    said = "note: FSDP groups of 4 cross supernodes: every layer's weights go over the slow links\n"
    assert capsys.readouterr().out == said


def test_with_a_node_that_the_file_does_not_place_groups_stay_within_what_is_known(tmp_path, capsys):
    assert {shard for _, shard in jobs(tmp_path, ["mx0", "mx1", "new"])} == {2}
    assert capsys.readouterr().out == "note: new is not in the topology file\n"


def test_what_the_config_says_wins_and_has_to_divide(tmp_path):
    assert {shard for _, shard in jobs(tmp_path, ["mx0", "mx1", "mx4", "mx2"], shard_ranks=8)} == {8}
    with pytest.raises(ValueError, match="shard_ranks is 3, but the 8 ranks are no multiple of it"):
        jobs(tmp_path, ["mx0", "mx1", "mx4", "mx2"], shard_ranks=3)


def test_without_a_file_or_on_one_node_slurms_order_stands(tmp_path):
    assert jobs(tmp_path, ["mx0", "mx2", "mx3", "mx4"], topology="") == [(rank, None) for rank in range(8)]
    assert jobs(tmp_path, ["mx0"], shard_ranks=1) == [(0, 1), (1, 1)]


def test_a_file_that_is_gone_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ValueError, match=r"slurm.topology: /gone/site.yaml: No such file"):
        jobs(tmp_path, ["mx0", "mx1"], topology="/gone/site.yaml")
