"""`qianka plan --explain` on the described cluster that is shipped and is nowhere."""

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from slurm.topology.planner import Need, plan
from slurm.topology.site import Topology, load
from workflow.config import RunConfig
from workflow.explain import explain as explained
from workflow.explain import need_of_cards

ROOT = Path(__file__).parents[2]
EXAMPLE = f"slurm.topology={ROOT / 'workflow/profiles/metax/topology.yaml'}"


def explain(folder: Path, *arguments: str, code: int = 0) -> str:
    """What the command says, without colours and 80 columns wide."""
    command = [sys.executable, "-P", "-m", "workflow.cli", "plan", "--explain", *arguments]
    env = {**os.environ, "PATH": "/nowhere", "TERM": "dumb"}  # no Slurm
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert not any(folder.iterdir())
    assert "\x1b" not in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "…" not in done.stdout
    return done.stdout if code == 0 else done.stderr


def words(text: str, start: str) -> list[str]:
    """The words of the first line that starts so, without the lines of the table."""
    lines = [line.replace("│", " ").split() for line in text.splitlines()]
    return next(line for line in lines if " ".join(line).startswith(start))


@pytest.mark.parametrize(
    ("cards", "head", "row", "gather", "reduce", "relay", "options"),
    [
        (64, "rl: 64 ranks on 8 nodes of 1 supernode; 1 copy", ["mx007", "56-63", "AAAA", "AAAA"], "48 8 8 0.984", "",
         "0 0 7 1", "--switches=1@60"),
        (256, "rl: 256 ranks on 32 nodes of 4 supernodes; 4 copies", ["sn03", "mx[024-031]", "192-255", "DDDDDDDD"],
         "192 32 32 0 0.984", "0 0 0 256 0.0234", "0 0 28 3 1", "--switches=4@60"),
        (512, "rl: 512 ranks on 64 nodes of 8 supernodes; 8 copies", ["sn07", "mx[056-063]", "448-511", "HHHHHHHH"],
         "384 64 64 0 0.984", "0 0 0 512 0.0273", "0 0 56 7 1", "--switches=8@60"),
        (1024, "rl: 1024 ranks on 128 nodes of 16 supernodes; 16 copies",
         ["sn15", "mx[120-127]", "960-1023", "PPPPPPPP"],
         "768 128 128 0 0 0.984", "0 0 0 896 128 0.0293", "0 0 112 14 1 1", "--switches=16@60"),
    ],
)  # fmt: skip
def test_the_rl_stage_is_drawn_on_64_to_1024_cards(tmp_path, cards, head, row, gather, reduce, relay, options):
    text = explain(tmp_path, EXAMPLE, "--cards", str(cards))
    assert head in text
    assert "sharded over 64 ranks" in " ".join(text.split())
    assert words(text, row[0]) == row
    assert words(text, "FSDP all-gather")[2:] == words(text, "FSDP reduce-scatter")[2:] == gather.split()
    assert ("gradient all-reduce   " in text) is bool(reduce)
    if reduce:
        assert words(text, "gradient all-reduce ")[2:] == reduce.split()
    assert words(text, "weights relay")[2:] == relay.split()
    assert words(text, "sbatch:") == ["sbatch:", options]
    assert "note:" not in text
    assert len(text.splitlines()) < 50


def test_every_stage_of_several_ranks_is_placed_as_the_config_asks(tmp_path):
    text = explain(
        tmp_path, EXAMPLE, "slurm.sft.nodes=2", "slurm.sft.tasks_per_node=8", "slurm.rl.nodes=20",
        "slurm.rl.tasks_per_node=6", "slurm.rl.shard_ranks=40",
    )  # fmt: skip
    assert "synth:" not in text and "evaluate:" not in text
    assert "sft: 16 ranks on 2 nodes of 1 supernode; 1 copy of the model" in text
    assert "rl: 120 ranks on 20 nodes of 3 supernodes; 3 copies of the model" in text
    assert "note: FSDP groups of 40 cross supernodes" in text
    assert "note: 40 cards of these nodes have no rank" in text
    assert "+ several copies" in " ".join(text.split())
    assert "--cards 64" in explain(tmp_path, EXAMPLE)


@pytest.mark.parametrize(
    ("nodes", "row"), [(4, ["mx001", "x"]), (28, ["sn02", "mx[016-019,021-023]", "112-167", "CCCCCCCx"])]
)
def test_a_node_that_the_run_avoids_is_drawn_so_and_not_used(nodes, row):
    topology = load(ROOT / "workflow/profiles/metax/topology.yaml")
    avoided = frozenset({"mx001", *(f"mx{number:03}" for number in (20, *range(32, 128)))})
    planned = plan(topology, Need(nodes, 8, excluded=avoided))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(explained("rl", planned, avoided))
    text = console.export_text()
    assert not avoided & set(planned.nodes)
    assert words(text, row[0]) == row
    assert "x avoided" in " ".join(text.split())


def test_a_site_of_any_size_and_any_names_fits_80_columns(tmp_path):
    long = ",".join(f"a-node-with-a-long-name-{number:04}" for number in range(0, 40, 2))
    supernodes = [{"name": f"s{s}", "nodes": f"n[{8 * s}-{8 * s + 7}]"} for s in range(600)]
    site = {"cards": 8, "supernodes": [*supernodes, {"name": "odd", "nodes": long}]}
    (tmp_path.parent / "large.yaml").write_text(yaml.safe_dump(site))
    text = explain(tmp_path, f"slurm.topology={tmp_path.parent}/large.yaml", "--cards", str(8 * 4800))
    assert len(text.splitlines()) < 60
    assert words(text, "579 more") == ["579", "more", "1280-38399", "..."]
    text = explain(tmp_path, f"slurm.topology={tmp_path.parent}/large.yaml", "--cards", "160")
    assert "odd" in text


@pytest.mark.parametrize(
    ("cards", "need"),
    [(3, (1, 3)), (16, (1, 16)), (32, (2, 16)), (48, (6, 8)), (24, (3, 8)), (80, (5, 16))],
)
def test_cards_fill_the_largest_nodes_of_which_there_are_enough(cards, need):
    supernodes = [{"name": "large", "nodes": "a[0-1]", "cards": 16}, {"name": "small", "nodes": "b[0-5]"}]
    topology = Topology.model_validate({"cards": 8, "supernodes": supernodes})
    found = need_of_cards(topology, cards, RunConfig(name="r"), frozenset())
    assert (found.nodes, found.tasks_per_node) == need


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "slurm.topology names no file, so there is nothing to place stages on; `qianka doctor --topology`"),
        ([EXAMPLE, "--cards", "2048"], "slurm.rl: 256 nodes with 8 cards each are 2048 cards, but the site has 128"),
        ([EXAMPLE, "--cards", "1021"], "--cards 1021: no even share for nodes of 8 cards; 1024 is near"),
        ([EXAMPLE, "slurm.rl.nodes=4", "slurm.rl.tasks_per_node=16"], "16 tasks a node need as many cards"),
        ([EXAMPLE, "slurm.rl.nodes=4", "slurm.rl.shard_ranks=3"], "slurm.rl: shard_ranks is 3, but the 4 ranks"),
        (["slurm.topology=gone.yaml"], "gone.yaml"),
    ],
)
def test_what_cannot_be_placed_is_an_error_that_says_why(tmp_path, arguments, message):
    assert message in explain(tmp_path, *arguments, code=2)


def test_1024_cards_are_explained_at_once(tmp_path):
    began = time.monotonic()
    explain(tmp_path, EXAMPLE, "--cards", "1024")
    assert time.monotonic() - began < 60


def test_the_drawing_in_the_documents_is_what_the_command_prints(tmp_path):
    document = (ROOT / "docs/topology.md").read_text()
    (drawing,) = re.findall(r"^```text\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^qianka plan --explain slurm\.topology=workflow/\S+ --cards (\d+)$", document, re.MULTILINE)
    printed = [explain(tmp_path, EXAMPLE, "--cards", cards) for cards in commands]
    assert [line.rstrip() for line in printed[0].strip().splitlines()] == drawing.splitlines()
