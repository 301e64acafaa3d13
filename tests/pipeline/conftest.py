"""A run that nothing disturbed, to compare with."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, tiny_config: str, qianka) -> Path:
    """The folder of a whole run of the tiny config."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "tiny.yaml").write_text(tiny_config)
    done = qianka(folder, "run", "tiny.yaml", "--cores", "1")
    assert done.returncode == 0, done.stdout
    return folder
