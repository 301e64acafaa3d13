"""What a submit takes from the topology."""

import pytest

from slurm.ask.submit import slurm_parameters
from slurm.exclusions import exclude
from workflow.config import load
from workflow.request import make_request

SITE = """\
cards: 8
scheduler: tree
supernodes:
  - {name: sn0, nodes: "mx[0-1]"}
  - {name: sn1, nodes: "mx[2-3]"}
"""


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Options of sbatch for the rl stage of a run whose config lies beside the topology file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "site.yaml").write_text(SITE)
    (tmp_path / "conf" / "mine.yaml").write_text("slurm: {topology: site.yaml, rl: {tasks_per_node: 8}}")

    def ask(*overrides: str) -> dict[str, object]:
        request = make_request(load(["conf/mine.yaml", *overrides]), "rl", 1)
        request.run_folder.mkdir(parents=True, exist_ok=True)
        return slurm_parameters(request, "name")["additional_parameters"]

    return ask


def test_a_job_of_several_nodes_asks_for_as_few_switches_as_it_was_planned_with(options):
    assert options("slurm.rl.nodes=2")["switches"] == "1@60"
    assert options("slurm.rl.nodes=3")["switches"] == "2@60"
    assert "switches" not in options("slurm.rl.nodes=1")
    assert "nodelist" not in options("slurm.rl.nodes=2")


def test_an_option_of_the_user_wins(options):
    assert options("slurm.rl.nodes=2", "slurm.additional.switches=2@5")["switches"] == "2@5"
    assert options("slurm.rl.nodes=2", "slurm.rl.additional.switches=1@7")["switches"] == "1@7"


def test_a_job_that_the_site_cannot_hold_is_refused_and_avoided_nodes_count(options, tmp_path):
    with pytest.raises(ValueError, match=r"slurm.rl on .*site.yaml: 5 nodes with 8 cards each are 40 cards"):
        options("slurm.rl.nodes=5")
    exclude(tmp_path / "runs" / "mine", ["mx1"], "ECC", 1)
    assert options("slurm.rl.nodes=2")["switches"] == "1@60"
    with pytest.raises(ValueError, match="3 such nodes without mx1, which the run avoids"):
        options("slurm.rl.nodes=4")
