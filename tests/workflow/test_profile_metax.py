"""The shipped profile for MetaX: what it sets is safe, and what it offers as a comment can be taken as it stands."""

import re
from pathlib import Path

import yaml

from slurm.config import SlurmConfig, Variable
from slurm.inside.environment import check_environment, plan
from workflow.config import load
from workflow.doctor import check_variables

SITE = Path(__file__).parents[2] / "workflow" / "profiles" / "metax" / "site.yaml"
EXAMPLE = re.compile(r"^    # (\w+: \{.*\})$", re.MULTILINE)


def site() -> SlurmConfig:
    return SlurmConfig.model_validate(yaml.safe_load(SITE.read_text())["slurm"])


def examples() -> list[tuple[str, Variable]]:
    found = [yaml.safe_load(line) for line in EXAMPLE.findall(SITE.read_text())]
    return [(name, Variable.model_validate(value)) for line in found for name, value in line.items()]


def test_nothing_is_set_by_itself_on_which_users_disagree():
    active = site().environment
    assert set(active) == {"MCPYTORCH_DISABLE_PRINT", "PYTORCH_CUDA_ALLOC_CONF"}
    assert not {name for name, _ in examples()} & set(active)
    assert sum(name.startswith("MCCL_") for name, _ in examples()) >= 10


def test_each_variable_says_who_says_so():
    assert all(len(variable.source) > 4 for variable in site().environment.values())
    assert all(len(variable.source) > 4 for _, variable in examples())


def test_an_example_can_be_taken_out_of_its_comment():
    check_environment(dict(examples()))
    assert all(variable.value is not None for _, variable in examples())
    settings = plan(dict(examples()), "ens1", "metax", {})
    assert {setting.name for setting in settings} >= {"MCCL_IB_HCA", "MCCL_SOCKET_IFNAME"}


def test_what_is_read_when_a_process_starts_is_in_the_setup():
    lines = "\n".join(site().setup)
    assert all(f"export {name}=" in lines for name in ("PATH", "LD_LIBRARY_PATH", "MACA_PATH", "CUCC_PATH"))
    check_environment(site().environment)


def test_the_doctor_lists_the_variables_of_a_rank_with_their_sources(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MCCL_DEBUG", "INFO")
    config = load(["profile=metax", "slurm.interface=lo"])
    found = {finding.check: (finding.verdict, finding.measured) for finding in check_variables(config, "mx0")}
    assert found["PYTORCH_CUDA_ALLOC_CONF"][1].startswith("(removed) (slurm.environment: siiRL")
    assert found["MCCL_SOCKET_IFNAME"] == ("ok", "lo (slurm.interface)")
    assert found["MCCL_DEBUG"] == ("ok", "INFO (set before Qianka started)")


def test_variables_that_contradict_each_other_are_bad_in_the_doctors_table(monkeypatch):
    monkeypatch.setattr("slurm.devices.read.kind_of_node", lambda: "metax")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("MACA_VISIBLE_DEVICES", "1")
    (finding,) = check_variables(load([]), "mx0")
    assert (finding.verdict, finding.check) == ("bad", "environment")
    assert "CUDA_VISIBLE_DEVICES=0 and MACA_VISIBLE_DEVICES=1" in finding.measured
