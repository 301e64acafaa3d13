import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNFINISHED = re.compile(
    "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error", "pragma: no " + "cover"))
)
LEFT_OUT = re.compile(r"pytest\.(mark\.)?(skip|xfail|importorskip)" + r"\b")
SNAKEMAKE_NAMES = re.compile(r"^\s*import (workflow|checkpoints)\b", re.MULTILINE)
TEXT = {".py", ".sh", ".smk", ".md", ".yaml", ".toml", ".sbatch", ""}


@pytest.fixture(scope="module")
def texts(tracked) -> dict[str, str]:
    return {name: (ROOT / name).read_text() for name in tracked if Path(name).suffix in TEXT and name != "LICENSE"}


def test_no_code_file_has_more_than_400_lines(texts):
    code = {name: text.count("\n") for name, text in texts.items() if not name.endswith(".md")}
    assert {name: lines for name, lines in code.items() if lines > 400} == {}


def test_nothing_is_left_unfinished(texts):
    assert [name for name, text in texts.items() if UNFINISHED.search(text)] == []


def test_no_test_is_left_out_in_silence(texts):
    assert [name for name, text in texts.items() if name.startswith("tests/") and LEFT_OUT.search(text)] == []


def test_snakefiles_leave_snakemake_its_own_names(texts):
    snakefiles = {name: text for name, text in texts.items() if name == "Snakefile" or name.endswith(".smk")}
    assert "Snakefile" in snakefiles
    assert [name for name, text in snakefiles.items() if SNAKEMAKE_NAMES.search(text)] == []


def test_tests_mirror_the_five_packages(tracked):
    known = {"workflow", "slurm", "stages", "data", "checkpoints", "pipeline", "cluster", "house", "faults"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert folders <= known
    assert [name for name in tracked if name.startswith("tests/") and name.endswith("__init__.py")] == []
