import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNFINISHED = re.compile(
    "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error", "pragma: no " + "cover"))
)
LEFT_OUT = re.compile(r"pytest\.(mark\.)?(skip|xfail|importorskip)" + r"\b")
SNAKEMAKE_NAMES = re.compile(r"^\s*import (workflow|checkpoints)\b", re.MULTILINE)
TEXT = {".py", ".sh", ".smk", ".md", ".yaml", ".toml", ".sbatch", ""}


def tracked() -> list[Path]:
    """Files of the repository, and those about to be."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(command, cwd=ROOT, text=True).split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def texts() -> dict[str, str]:
    return {
        p.relative_to(ROOT).as_posix(): p.read_text() for p in tracked() if p.suffix in TEXT and p.name != "LICENSE"
    }


def test_no_code_file_has_more_than_400_lines():
    code = {name: text.count("\n") for name, text in texts().items() if not name.endswith(".md")}
    assert {name: lines for name, lines in code.items() if lines > 400} == {}


def test_nothing_is_left_unfinished():
    assert [name for name, text in texts().items() if UNFINISHED.search(text)] == []


def test_no_test_is_left_out_in_silence():
    assert [name for name, text in texts().items() if name.startswith("tests/") and LEFT_OUT.search(text)] == []


def test_snakefiles_leave_snakemake_its_own_names():
    snakefiles = {name: text for name, text in texts().items() if name == "Snakefile" or name.endswith(".smk")}
    assert "Snakefile" in snakefiles
    assert [name for name, text in snakefiles.items() if SNAKEMAKE_NAMES.search(text)] == []


def test_tests_mirror_the_five_packages():
    known = {"workflow", "slurm", "stages", "data", "checkpoints", "pipeline", "cluster", "house", "faults"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert folders <= known
    assert not [path for path in tracked() if path.is_relative_to(ROOT / "tests") and path.name == "__init__.py"]
