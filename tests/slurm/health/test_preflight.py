"""A large job looks at its nodes first: a bad one is named, and what is not the node's fault is not held against it."""

import errno
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from slurm.attempt import JobFile
from slurm.health import files
from slurm.health import preflight as module
from slurm.health.preflight import preflight
from slurm.inside.place import Place
from slurm.verdict import BadNode

JOB = JobFile(run="r", inputs={}, files={}, code={}, minutes=1, tasks_per_node=1, cpus=1)


def place(rank=0, nodes=2, local_rank=0):
    tasks = {f"mx{number}": 1 for number in range(nodes)}
    return Place("slurm", rank, nodes, local_rank, f"mx{rank}", "7", 0, "slurm-7-0", None, tasks)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(module, "WAIT", (1.0, 1.0))


@pytest.fixture
def mx_smi(tmp_path, monkeypatch):
    """`mx_smi(line)`: a tool that says `line` of the node's only card."""

    def put(line):
        folder = tmp_path / "bin"
        folder.mkdir()
        tool = folder / "mx-smi"
        tool.write_text(f'#!/bin/sh\n[ "$*" = -L ] && echo "Attached GPUs : 1" && echo "{line}" || exit 2\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_GPUS_ON_NODE", "1")

    return put


def test_a_node_without_cards_is_looked_at_without_torch(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "ask", None)  # would start torch
    preflight(place(), JOB, tmp_path)
    assert "preflight: mx0 is well as far as it shows" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_card_that_is_not_available_makes_a_bad_node(tmp_path, mx_smi):
    mx_smi("GPU#0    MXC550      0000:1b:00.0   Unavailable")
    with pytest.raises(BadNode, match="node mx1: card 0: its state is 'Unavailable'") as caught:
        preflight(place(rank=1), JOB, tmp_path)
    assert caught.value.nodes == ("mx1",)


def test_a_card_that_was_not_given_to_the_job_is_left_alone(tmp_path, mx_smi, monkeypatch):
    mx_smi("GPU#0    MXC550      0000:1b:00.0   Available")
    monkeypatch.delenv("SLURM_GPUS_ON_NODE")
    monkeypatch.setattr(module, "ask", None)  # would compute
    preflight(place(), JOB, tmp_path)


def test_a_small_job_starts_at_once(tmp_path, mx_smi):
    mx_smi("GPU#0    MXC550      0000:1b:00.0   Unavailable")
    preflight(place(nodes=1), JOB, tmp_path)


def test_a_card_whose_stream_hangs_makes_a_bad_node(tmp_path, mx_smi, monkeypatch):
    mx_smi("GPU#0    MXC550      0000:1b:00.0   Available")
    started = {"what": "started"}
    device = {"what": "device", "kind": "cuda", "name": "MetaX C550", "torch": "2.8.0"}
    matmul = {"what": "matmul", "right": True, "gflops": 1.0, "size": 1, "dtype": "bfloat16"}
    script = tmp_path / "bin" / "python"
    said = "; ".join(f"echo '{json.dumps(line)}'" for line in (started, device, matmul))
    script.write_text(f"#!/bin/sh\n{said}; exec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(module, "COMPUTE_SECONDS", 1.0)
    with pytest.raises(BadNode, match="node mx0: stream on card 0: no answer within 1 s"):
        preflight(place(), JOB, tmp_path)


@pytest.mark.parametrize("said", ["ModuleNotFoundError: No module named 'torch'", "RuntimeError: no kernel image"])
def test_what_would_fail_on_any_node_is_left_to_the_stage(tmp_path, mx_smi, monkeypatch, said):
    mx_smi("GPU#0    MXC550      0000:1b:00.0   Available")
    script = tmp_path / "bin" / "python"
    script.write_text(f'#!/bin/sh\necho "{said}" >&2; exit 1\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    preflight(place(), JOB, tmp_path)


def refuse_writes(monkeypatch, number):
    def refuse(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)


def test_a_run_folder_that_one_node_cannot_write_makes_a_bad_node(tmp_path, monkeypatch):
    refuse_writes(monkeypatch, errno.EROFS)
    with pytest.raises(BadNode, match="node mx0: run folder: .*read-only"):
        preflight(place(), JOB, tmp_path)


@pytest.mark.parametrize(("nodes", "bad", "is_fault"), [(2, 2, False), (16, 2, True), (16, 3, False)])
def test_what_many_nodes_have_at_once_is_no_fault_of_theirs(tmp_path, monkeypatch, nodes, bad, is_fault):
    refuse_writes(monkeypatch, errno.EACCES)
    if not is_fault:  # each waits until enough have it, however late they are
        monkeypatch.setattr(module, "WAIT", (60.0, 60.0))
    with ThreadPoolExecutor(bad) as pool:
        found = [pool.submit(preflight, place(rank, nodes), JOB, tmp_path) for rank in range(bad)]
    for rank, each in enumerate(found):
        error = each.exception()
        assert isinstance(error, BadNode if is_fault else ValueError), error
        everywhere = f"{', '.join(f'mx{number}' for number in range(bad))} all have it"
        assert (f"node mx{rank}: run folder" if is_fault else everywhere) in str(error)


def test_another_fault_of_another_node_excuses_none(tmp_path, mx_smi, monkeypatch):
    mx_smi("GPU#0    MXC550      0000:1b:00.0   Unavailable")
    with pytest.raises(BadNode):
        preflight(place(rank=1), JOB, tmp_path)
    monkeypatch.delenv("SLURM_GPUS_ON_NODE")
    refuse_writes(monkeypatch, errno.EROFS)
    with pytest.raises(BadNode, match="node mx0: run folder"):
        preflight(place(), JOB, tmp_path)


def test_a_full_run_folder_is_no_fault_of_the_node(tmp_path, monkeypatch):
    refuse_writes(monkeypatch, errno.EDQUOT)
    monkeypatch.setattr(module, "check_space", lambda folder, node: [])
    with pytest.raises(ValueError, match="your quota of this disk is used up; make room"):
        preflight(place(), JOB, tmp_path)


def test_a_full_disk_of_its_own_is_the_node_s_fault(tmp_path, monkeypatch):
    monkeypatch.setitem(files.FREE_BYTES, "/tmp", 1 << 60)
    with pytest.raises(BadNode, match="node mx0: space of /tmp"):
        preflight(place(), JOB, tmp_path)
