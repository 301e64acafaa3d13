import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm.attempt import JobFile
from slurm.claim import take_over
from slurm.config import Variable
from slurm.inside.environment import apply, describe, plan, tasks_on_node
from slurm.verdict import read_verdict
from workflow.config import load
from workflow.preflight import check_config


def variable(value: str | None) -> Variable:
    return Variable(value=value, source="the test")


def job_file(interface: str | None = None, **environment: str | None) -> JobFile:
    return JobFile(
        run="r",
        inputs={},
        files={},
        code={},
        minutes=10,
        tasks_per_node=1,
        cpus=1,
        interface=interface,
        environment={name: variable(value) for name, value in environment.items()},
    )


def test_the_sites_variables_are_set_and_removed():
    env = {"PYTORCH_CUDA_ALLOC_CONF": "x", "OTHER": "1"}
    settings = apply(job_file(MCCL_ALGO="Ring", PYTORCH_CUDA_ALLOC_CONF=None), "cpu", env)
    assert env == {"OTHER": "1", "MCCL_ALGO": "Ring"}
    assert str(settings[0]) == "MCCL_ALGO=Ring (slurm.environment: the test)"


def test_a_value_that_a_person_has_exported_is_replaced_aloud(capsys):
    env = {"MCCL_IB_HCA": "mlx5_0", "MCCL_ALGO": "Ring", "GLOO_SOCKET_IFNAME": "eth0"}
    apply(job_file(interface="ens1", MCCL_IB_HCA="xscale_0", MCCL_ALGO="Ring"), "metax", env)
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "environment: MCCL_IB_HCA: mlx5_0 of the job's environment became xscale_0 (slurm.environment: the test)",
        "environment: GLOO_SOCKET_IFNAME: eth0 of the job's environment became ens1 (slurm.interface)",
    ]


def test_nothing_is_set_where_nothing_is_asked_for():
    env = {"GLOO_SOCKET_IFNAME": "eth0"}
    assert apply(job_file(), "cpu", env) == []
    assert env == {"GLOO_SOCKET_IFNAME": "eth0"}


def test_the_interface_is_that_of_gloo_nccl_and_mccl_unless_the_site_says_otherwise():
    env: dict[str, str] = {}
    apply(job_file(interface="ens1,ens2", MCCL_SOCKET_IFNAME="ib0"), "metax", env)
    assert env == {"GLOO_SOCKET_IFNAME": "ens1,ens2", "NCCL_SOCKET_IFNAME": "ens1,ens2", "MCCL_SOCKET_IFNAME": "ib0"}


@pytest.mark.parametrize("given", ["CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES"])
def test_both_visibility_variables_say_what_the_one_that_slurm_gave_says(given):
    env = {given: "2,3"}
    apply(job_file(), "metax", env)
    assert env == {"CUDA_VISIBLE_DEVICES": "2,3", "MACA_VISIBLE_DEVICES": "2,3"}


def test_visibility_variables_that_disagree_are_an_error_that_names_both():
    env = {"CUDA_VISIBLE_DEVICES": "2,3", "MACA_VISIBLE_DEVICES": "0,1"}
    with pytest.raises(ValueError, match=r"CUDA_VISIBLE_DEVICES=2,3 and MACA_VISIBLE_DEVICES=0,1 name different cards"):
        apply(job_file(), "metax", env)
    apply(job_file(), "metax", {"CUDA_VISIBLE_DEVICES": "2,3", "MACA_VISIBLE_DEVICES": "2, 3"})
    apply(job_file(), "nvidia", env)


def test_elsewhere_no_variable_of_metax_is_set():
    for kind in ("nvidia", "cpu"):
        env = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_GPUS_ON_NODE": "1"}
        assert apply(job_file(), kind, env) == []


def test_two_processes_on_one_card_need_macas_leave():
    shared = {"SLURM_STEP_TASKS_PER_NODE": "16(x2)", "SLURM_NODEID": "1", "SLURM_GPUS_ON_NODE": "8"}
    env = dict(shared)
    (setting,) = apply(job_file(), "metax", env)
    assert env["MACA_MPS_MODE"] == "1"
    assert "16 ranks share 8 card(s)" in setting.source
    assert apply(job_file(), "metax", {**shared, "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}) == []
    assert apply(job_file(), "metax", {**shared, "MACA_MPS_MODE": "0"}) == []
    assert apply(job_file(), "cpu", dict(shared)) == []


def test_macas_leave_is_also_there_where_only_torch_tells_the_vendor(monkeypatch):
    monkeypatch.setattr("slurm.inside.environment.torch_version", lambda: "2.10.0+metax3.8.0.7")
    env = {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_GPUS_ON_NODE": "1"}
    apply(job_file(), "unknown", env)
    assert env["MACA_MPS_MODE"] == "1"


def test_cards_are_counted_where_slurm_does_not_count_them(tmp_path):
    for number in (128, 129):
        folder = tmp_path / f"sys/class/drm/renderD{number}/device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x9999\n")
    in_slurm = {"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "3", "CUDA_VISIBLE_DEVICES": "0"}
    assert [s.name for s in plan({}, None, "metax", in_slurm, tmp_path)] == ["MACA_VISIBLE_DEVICES", "MACA_MPS_MODE"]
    assert not [s for s in plan({}, None, "metax", {**in_slurm, "SLURM_STEP_TASKS_PER_NODE": "2"}, tmp_path)][1:]
    by_hand = {"LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "1", "MACA_VISIBLE_DEVICES": "1"}
    assert [s.name for s in plan({}, None, "metax", by_hand, tmp_path)] == ["MACA_MPS_MODE"]


@pytest.mark.parametrize(
    ("env", "tasks"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, 1),
        ({"SLURM_TASKS_PER_NODE": "4"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "7"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "many"}, None),
        ({"SUBMITIT_LOCAL_NTASKS": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "8", "SLURM_TASKS_PER_NODE": "1"}, 8),
        ({}, None),
    ],
)
def test_ranks_of_a_node_are_counted(env, tasks):
    assert tasks_on_node(env) == tasks


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "PATH", "LD_PRELOAD", "PYTHONPATH", "GLIBC_TUNABLES"])
def test_what_a_process_reads_when_it_starts_belongs_into_the_setup(name):
    with pytest.raises(ValueError, match=rf"slurm\.environment\.{name}: .* `export {name}=\"/x\"` into slurm\.setup"):
        apply(job_file(**{name: "/x"}), "cpu", {})
    with pytest.raises(ValueError, match=rf"`unset {name}` into slurm\.setup"):
        apply(job_file(**{name: None}), "cpu", {})


def test_no_secret_is_shown(capsys):
    env = {
        "VLLM_API_KEY": "hunter2",
        "MACA_TOKEN": "hunter2",
        "MCCL_PASSWORD": "hunter2",
        "TOKENIZERS_PARALLELISM": "0",
    }
    rows = describe({"TOKENIZERS_PARALLELISM": variable("1")}, None, "cpu", env)
    assert rows == [
        ("TOKENIZERS_PARALLELISM", "1", "slurm.environment: the test"),
        ("MACA_TOKEN", "(not shown)", "set before Qianka started"),
        ("MCCL_PASSWORD", "(not shown)", "set before Qianka started"),
        ("VLLM_API_KEY", "(not shown)", "set before Qianka started"),
    ]
    settings = apply(
        JobFile.model_construct(environment={"MY_SECRET": variable("hunter3")}, interface=None),
        "cpu",
        {"MY_SECRET": "hunter2"},
    )
    assert "hunter" not in f"{capsys.readouterr().out}{settings[0]}{settings}"


def test_the_description_has_what_is_set_and_what_was_there():
    env = {"MCCL_DEBUG": "INFO", "HOME": "/home/me", "CUDA_VISIBLE_DEVICES": "0"}
    assert describe({"MCCL_ALGO": variable(None)}, "lo", "metax", env) == [
        ("MCCL_ALGO", "(removed)", "slurm.environment: the test"),
        ("GLOO_SOCKET_IFNAME", "lo", "slurm.interface"),
        ("NCCL_SOCKET_IFNAME", "lo", "slurm.interface"),
        ("MCCL_SOCKET_IFNAME", "lo", "slurm.interface"),
        ("MACA_VISIBLE_DEVICES", "0", "as CUDA_VISIBLE_DEVICES"),
        ("CUDA_VISIBLE_DEVICES", "0", "set before Qianka started"),
        ("MCCL_DEBUG", "INFO", "set before Qianka started"),
    ]


def test_the_environment_is_set_without_torch():
    code = "import sys, slurm.inside.environment; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def run_rank(attempt: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "slurm.job", str(attempt)]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)


def test_a_rank_says_what_it_replaces_and_runs(request_for):
    request = request_for()
    environment = {"MCCL_ALGO": variable("Ring"), "MCCL_DEBUG": variable(None)}
    slurm = request.slurm.model_copy(update={"environment": environment, "interface": "lo"})
    attempt = take_over(request.model_copy(update={"slurm": slurm}), None).folder
    done = run_rank(attempt, {"MCCL_ALGO": "Tree", "MCCL_DEBUG": "INFO", "GLOO_SOCKET_IFNAME": "eth7"})
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("environment: ")]
    assert said == [
        "environment: MCCL_ALGO: Tree of the job's environment became Ring (slurm.environment: the test)",
        "environment: MCCL_DEBUG: INFO of the job's environment was removed (slurm.environment: the test)",
        "environment: GLOO_SOCKET_IFNAME: eth7 of the job's environment became lo (slurm.interface)",
    ]


def test_a_rank_whose_visible_cards_are_told_in_two_ways_ends_with_a_mistake(request_for, tmp_path):
    attempt = take_over(request_for(), None).folder
    tool = tmp_path / "bin" / "mx-smi"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    env = {"PATH": f"{tool.parent}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "0", "MACA_VISIBLE_DEVICES": "1"}
    assert run_rank(attempt, env).returncode == 1
    verdict = read_verdict(attempt)
    assert verdict is not None and verdict.why == "mistake"
    assert "CUDA_VISIBLE_DEVICES=0 and MACA_VISIBLE_DEVICES=1 name different cards" in verdict.message


def test_what_comes_too_late_is_refused_before_a_job_is_asked_for():
    run = load(["slurm.environment={LD_PRELOAD: {value: /x, source: me}}", "slurm.executor=local"])
    with pytest.raises(ValueError, match=r"slurm\.environment\.LD_PRELOAD"):
        check_config(run)
