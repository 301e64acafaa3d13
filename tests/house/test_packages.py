import importlib.util
import subprocess
import sys
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


def test_the_login_node_never_loads_torch():
    modules = ["workflow.cli", "workflow.config", *(f"slurm.{path.stem}" for path in (ROOT / "slurm").glob("*.py"))]
    imports = "; ".join(f"import {name}" for name in modules)
    heavy = "{'torch', 'transformers', 'vllm', 'megatron'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {imports}; print(sorted({heavy}))"], capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
