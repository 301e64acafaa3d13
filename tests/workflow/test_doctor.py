"""`qianka doctor`: a table for the administrator, and an exit code that says whether there is something to do."""

import json
import sys
import time
from pathlib import Path

import pytest

from slurm.exclusions import exclude
from slurm.health.finding import Finding
from workflow.config import load
from workflow.doctor import avoided, merged


def test_this_machine_is_examined_in_plain_text(qianka, tmp_path):
    done = qianka(tmp_path, "doctor", "slurm.executor=local")
    assert done.returncode == 0, done.stdout
    rows = {line.split("  ")[0].strip(): line for line in done.stdout.splitlines() if line.startswith(" ")}
    for check in (
        "rename",
        "fsync",
        "locks",
        "file times",
        "cards",
        "requirements",
        "packages",
        "matmul",
        "grader",
        "tokenizer",
    ):
        assert " ok " in rows[check], done.stdout
    assert "not run" in rows["stream"]
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_grader_that_gives_its_own_answer_nothing_is_bad(qianka, tmp_path):
    rows = [{"prompt": f"{number}+1?", "answer": " "} for number in range(10)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.yaml").write_text("environment: {name: rows, path: mine.jsonl}\nslurm: {executor: local}\n")
    done = qianka(tmp_path, "doctor", "mine.yaml")
    assert done.returncode == 1, done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith(" grader") and " bad " in line]


def test_nodes_are_asked_for_only_where_there_is_slurm(qianka, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    done = qianka(tmp_path, "doctor", "--nodes=2")
    assert done.returncode == 2
    assert "error: --nodes: there is no Slurm here" in done.stdout


def test_what_the_run_avoids_is_shown_with_reason_and_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Path("runs/demo")
    run.mkdir(parents=True)
    exclude(run, ["mx7"], "card 3: its state is 'Unavailable'", hours=24)
    exclude(run, ["mx8"], "long ago", hours=-1)
    (row,) = avoided(load([]))
    assert (row.node, row.verdict) == ("mx7", "unknown")
    assert row.measured.startswith(f"until {time.strftime('%Y-%m-%d', time.localtime(time.time() + 24 * 3600))}")
    assert row.measured.endswith("card 3: its state is 'Unavailable'")
    assert row.way_out == "mended? remove it from runs/demo/excluded.json"


def ok(node, measured):
    return Finding("fsync", node, "ok", measured)


def test_nodes_that_are_well_share_a_row_and_others_do_not():
    bad = [Finding("clock", f"mx{number}", "bad", f"+{number} s", "NTP") for number in range(2)]
    nodes = [ok(f"mx{number}", f"{number} ms") for number in range(6)]
    rows = merged([*nodes, *bad])
    assert [row.node for row in rows] == ["mx[0-5]", "mx0", "mx1"]
    assert rows[0].measured == "mx0: 0 ms"


@pytest.mark.parametrize("verdict", ["bad", "unknown"])
def test_nodes_with_the_same_fault_share_a_row(verdict):
    rows = merged([Finding("packages", node, verdict, "from elsewhere") for node in ("mx0", "mx1")])
    assert [(row.node, row.measured) for row in rows] == [("mx[0-1]", "from elsewhere")]
