import subprocess
from pathlib import Path

import pytest

from slurm import fingerprint
from slurm.fingerprint import code_files, code_version, file_digest

STAGES = ("synth", "sft", "rl", "evaluate")


@pytest.fixture
def digest_of(tmp_path):
    def digest(text: str, suffix: str = ".py") -> str:
        file_digest.cache_clear()
        path = tmp_path / f"code{suffix}"
        path.write_text(text)
        return file_digest(path)

    return digest


PLAIN = "def f(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    "same",
    [
        "# a comment\ndef f(x):  # another\n    return x + 1\n",
        '"""A module."""\n\ndef f(x):\n    """A function."""\n    return x + 1\n',
        "def f( x ):\n\n\n    return (x+1)\n",
    ],
)
def test_comments_docstrings_and_formatting_do_not_count(digest_of, same):
    assert digest_of(same) == digest_of(PLAIN)


@pytest.mark.parametrize("other", ["def f(x):\n    return x + 2\n", "def f(x, y=1):\n    return x + 1\n"])
def test_what_code_does_counts(digest_of, other):
    assert digest_of(other) != digest_of(PLAIN)


def test_of_yaml_the_values_count(digest_of):
    assert digest_of("a: 1 # one\nb: [2]\n", ".yaml") == digest_of("b:\n- 2\na: 1\n", ".yaml")
    assert digest_of("a: 1\n", ".yaml") != digest_of("a: 2\n", ".yaml")


def test_the_config_of_a_section_may_be_documented_without_a_rerun(digest_of):
    assert digest_of('class A:\n    x: int = 1\n    """Help."""\n') == digest_of("class A:\n    x: int = 1\n")


def test_a_stage_reaches_its_own_code_and_what_it_imports_and_no_other_stage():
    for stage in STAGES:
        reached = code_files(stage)
        assert f"stages/{stage}/run.py" in reached
        assert "checkpoints/manifest.py" in reached
        for other in set(STAGES) - {stage}:
            assert not any(path.startswith(f"stages/{other}/") for path in reached)
    assert "stages/trainer/learner.py" in code_files("sft")
    assert "stages/algorithms/dr_grpo.yaml" in code_files("rl")


def test_the_trainer_is_no_part_of_synth():
    assert not any(path.startswith("stages/trainer/") and "config" not in path for path in code_files("synth"))


def test_nothing_of_the_cluster_or_the_command_line_counts():
    for stage in STAGES:
        assert not any(path.startswith(("slurm/", "workflow/")) for path in code_files(stage))


def test_a_module_that_is_only_named_in_a_string_counts(tmp_path, monkeypatch):
    for name, text in {
        "stages/x/run.py": 'MODULES = ("data.rows",)\n',
        "stages/x/config.py": "",
        "data/rows.py": "",
        "data/other.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(fingerprint, "ROOT", tmp_path)
    code_files.cache_clear()
    assert set(code_files("x")) == {"stages/x/run.py", "stages/x/config.py", "data/rows.py"}
    code_files.cache_clear()


def test_the_version_is_that_of_git_with_a_mark_for_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "ROOT", tmp_path)
    assert code_version() == ""
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "a.py"
    file.write_text("x = 1\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    clean = code_version()
    assert len(clean) == 12
    file.write_text("x = 2\n")
    assert code_version() == f"{clean}+dirty"


def test_outside_git_there_is_no_version(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "ROOT", Path("/"))
    assert code_version() == ""
