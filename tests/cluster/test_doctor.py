"""`qianka doctor --nodes` and the preflight on the real cluster: healthy, frozen, interrupted and bad nodes."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.cluster

SITE = """\
cards: 1
supernodes:
- {name: sn0, nodes: "mx[0-1]"}
- {name: sn1, nodes: "mx[2-3]"}
links:
  supernode: {name: MetaXLink, all_reduce: [10, 100], source: nobody}
"""
MX_SMI = """\
#!/bin/sh
# A card on every node; that of the node named in the file `bad` is not available.
state=Available
[ "$(hostname)" = "$(cat FOLDER/bad)" ] && state=Unavailable
[ "$*" = -L ] && echo "Attached GPUs : 1" && echo "GPU#0    MXC550      0000:1b:00.0   $state" && exit
exit 2
"""


def wait_until(condition, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)


def jobs_of_doctors(cluster):
    return [line for line in cluster.run("squeue", "-h", "-o", "%j %t").splitlines() if "qianka-doctor" in line]


def slurmd(node):
    """The daemon of a node of this cluster."""
    for process in psutil.process_iter():
        try:
            is_it = process.cmdline()[:4] == ["slurmd", "-b", "-N", node]
            if is_it and process.environ().get("SLURM_CONF") == os.environ["SLURM_CONF"]:
                return process
        except psutil.Error:  # it has ended since
            continue
    raise AssertionError(f"no slurmd of {node}")


def test_four_nodes_examine_themselves_and_each_other(cluster, tmp_path, qianka):
    (tmp_path / "site.yaml").write_text(SITE)
    done = qianka(tmp_path, "doctor", "--nodes=4", "slurm.interface=lo", f"slurm.topology={tmp_path}/site.yaml")
    assert done.returncode == 0, done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith(" ")]
    for check, nodes in (
        ("clock against mx0", "mx[1-3]"),
        ("visible files", "mx[0-3]"),
        ("locks between nodes", "mx[0-3]"),
        ("connect by name", "mx[0-3]"),
        ("connect by interface", "mx[0-3]"),
        ("matmul", "mx[0-3]"),
    ):
        (row,) = [row for row in rows if row.startswith(f" {check} ")]
        assert nodes in row and " ok " in row, row
    for level, count in (("supernode", 2), ("between supernodes", 2)):
        figures = [row for row in rows if row.startswith(f" all-reduce {level} ")]
        assert len(figures) == count and all("GB/s by gloo on CPUs" in row for row in figures), done.stdout
    assert any("MaxArraySize" in row for row in rows)
    assert list(tmp_path.iterdir()) == [tmp_path / "site.yaml"]
    wait_until(lambda: jobs_of_doctors(cluster) == [])


def test_a_frozen_node_is_named_within_the_limit(cluster, tmp_path, monkeypatch):
    from slurm.config import SlurmConfig
    from slurm.health import job
    from slurm.health.collect import Limits

    frozen, allocate = slurmd("mx3"), job.allocate

    def allocate_and_freeze(*arguments):
        allocated = allocate(*arguments)
        frozen.suspend()  # not before: Slurm gives out no node that does not answer
        return allocated

    monkeypatch.setattr(job, "allocate", allocate_and_freeze)
    try:
        found = job.examine_nodes(SlurmConfig(interface="lo"), tmp_path, 4, print, Limits(answer=25))
    finally:
        frozen.resume()
    bad = {finding.node: finding.measured for finding in found if finding.verdict == "bad"}
    # Either the time is up, or srun has given up before.
    assert list(bad) == ["mx3"] and bad["mx3"].startswith("no answer"), bad
    assert {finding.node for finding in found if finding.check == "locks between nodes"} == {"mx0", "mx1", "mx2"}
    assert list(tmp_path.iterdir()) == []
    cluster.script("wait-node", "mx3", "idle|mix|alloc|comp", "40")


def test_ctrl_c_cancels_the_job_and_leaves_nothing(cluster, tmp_path):
    command = [sys.executable, "-P", "-m", "workflow.cli", "doctor", "--nodes=2", "slurm.interface=lo"]
    doctor = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    wait_until(lambda: any(line.endswith("R") for line in jobs_of_doctors(cluster)))
    wait_until(lambda: list(tmp_path.glob(".doctor-*/hello-*.json")))
    doctor.send_signal(signal.SIGINT)
    assert doctor.wait(90) != 0
    assert list(tmp_path.iterdir()) == []
    wait_until(lambda: jobs_of_doctors(cluster) == [])


def test_what_the_cluster_does_not_have_is_refused_before_a_job_is_asked_for(cluster, tmp_path, qianka):
    for arguments, message in (
        (("--nodes=9",), "slurm.rl.nodes is 9, but partition supernode has 4 nodes"),
        (("--nodes=2", "slurm.partition=supernod"), "there is no partition supernod; did you mean supernode"),
    ):
        done = qianka(tmp_path, "doctor", *arguments)
        assert done.returncode == 2 and message in done.stdout, done.stdout
    assert list(tmp_path.iterdir()) == []
    assert jobs_of_doctors(cluster) == []


def test_a_bad_node_is_named_avoided_and_comes_back_when_its_time_is_over(
    cluster, tmp_path, qianka, tiny_config, faults
):
    tool = tmp_path / "bin" / "mx-smi"
    tool.parent.mkdir()
    tool.write_text(MX_SMI.replace("FOLDER", str(tmp_path)))
    tool.chmod(0o755)
    (tmp_path / "bad").write_text("mx0")
    setup = f"slurm: {{executor: slurm, interface: lo, setup: ['export PATH={tool.parent}:$PATH']}}"
    (tmp_path / "tiny.yaml").write_text(tiny_config.replace("slurm: {executor: local}", setup))
    began = time.monotonic()
    done = qianka(tmp_path, "stage", "synth", "tiny.yaml", "slurm.synth.nodes=2")
    assert done.returncode == 0, done.stdout
    told = "mx0 failed: node mx0: card 0: its state is 'Unavailable'; avoided from now on"
    assert told in done.stdout
    line = next(line for line in done.stdout.splitlines() if told in line)
    faults.note("a bad card, found by the preflight", line, time.monotonic() - began)
    excluded = tmp_path / "runs" / "tiny" / "excluded.json"
    entry = json.loads(excluded.read_text())["mx0"]
    assert 23 * 3600 < entry["until"] - time.time() <= 24 * 3600
    first, second = done.stdout.split("avoided from now on")
    assert "runs on mx[0-1]" in first and "runs on mx[2-3]" in second

    excluded.write_text(json.dumps({"mx0": {**entry, "until": time.time() - 1}}))
    tool.unlink()
    done = qianka(tmp_path, "stage", "synth", "tiny.yaml", "slurm.synth.nodes=4", "seed=4")
    assert done.returncode == 0, done.stdout
    assert "runs on mx[0-3]" in done.stdout
