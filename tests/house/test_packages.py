import importlib.util
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("workflow", "slurm", "stages", "data", "checkpoints")


@pytest.mark.parametrize("name", PACKAGES)
def test_the_package_is_the_one_of_this_repository_and_not_of_another_distribution(name):
    found = importlib.util.find_spec(name)
    assert found is not None and found.origin is not None
    assert Path(found.origin).parent == ROOT / name


@pytest.mark.parametrize("name", PACKAGES)
def test_the_init_files_stay_empty(name):
    for path in (ROOT / name).rglob("__init__.py"):
        assert not path.read_text().strip(), path


def test_the_base_install_and_its_own_needs_leave_torch_and_vllm_to_the_vendor():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() for line in project["dependencies"]}
    seen: set[str] = set()
    while named - seen:
        name = (named - seen).pop()
        seen.add(name)
        with suppress(PackageNotFoundError):  # one for another platform
            needs = [line for line in distribution(name).requires or [] if "extra ==" not in line]
            named |= {re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() for line in needs}
    assert (
        named & {"torch", "vllm", "triton", "torchvision", "torchaudio", "xformers", "flash-attn", "deepspeed"} == set()
    )


def test_the_login_node_never_loads_torch():
    modules = ["workflow.cli", "workflow.config", *(f"slurm.{path.stem}" for path in (ROOT / "slurm").glob("*.py"))]
    modules += [f"slurm.devices.{path.stem}" for path in (ROOT / "slurm" / "devices").glob("*.py")]
    imports = "; ".join(f"import {name}" for name in modules)
    heavy = "{'torch', 'transformers', 'vllm', 'megatron'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {imports}; print(sorted({heavy}))"], capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
