"""Every command that the documents show is one that exists: its options, targets, files and keys are looked up.

Commands stand in ```bash blocks. A file whose name starts with `my` or `mine` is the reader's own, and a word in
capitals stands for something of theirs.
"""

import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import click
import pytest
import typer.main

from workflow.cli import app
from workflow.config import INPUTS, load
from workflow.layers import is_override

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
ASSIGNMENT = re.compile(r"^[A-Z_][A-Z0-9_]*=")
OTHERS_FILE = re.compile(r"(^|/)(my|mine)[^/]*$|^[A-Z_/.]+$|^/path/to/")
SEPARATORS = {"&&", "||", "|", ";"}
SHELL = {
    "cd",
    "export",
    "eval",
    "cat",
    "tail",
    "ls",
    "cp",
    "find",
    "mkdir",
    "git",
    "squeue",
    "sacct",
    "scancel",
    "module",
    "apt-get",
}
"""Commands that are not ours to check."""


def commands() -> list[tuple[str, str]]:
    """Each document with each single command in it."""
    found: list[tuple[str, str]] = []
    for document in DOCUMENTS:
        for block in FENCE.findall(document.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
                lexer.whitespace_split = True
                words: list[str] = []
                for word in [*lexer, ";"]:
                    if word not in SEPARATORS:
                        words.append(word)
                    elif words:
                        found.append((document.name, shlex.join(words)))
                        words = []
    return found


def exists(name: str) -> bool:
    return bool(OTHERS_FILE.search(name)) or (ROOT / name).exists()


def check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    for word in words:
        if ASSIGNMENT.match(word):
            variable, _, value = word.partition("=")
            assert f"$({variable}" in makefile or f"$(or $({variable}" in makefile, word
            assert variable != "ONLY" or value.isupper() or value == "name" or exists(f"benchmarks/{value}.py"), word
        else:
            assert word in phony.split(), word


def check_qianka(words: list[str]) -> None:
    group = typer.main.get_command(app)
    context = click.Context(group, info_name="qianka")
    name, command, rest = group.resolve_command(context, words)
    parsed = command.make_context(name, list(rest), parent=context)
    arguments = parsed.params.get("arguments") or []
    if name == "stage":
        assert parsed.params["name"] in INPUTS or parsed.params["name"].isupper()
    check_config(arguments)


def check_config(arguments: list[str]) -> None:
    files = [argument for argument in arguments if not is_override(argument)]
    for file in files:
        assert exists(file), file
    overrides = [word for word in arguments if is_override(word) and word != "rl.algorithm=mine.yaml"]
    load([*(str(ROOT / file) for file in files if (ROOT / file).exists()), *overrides])


@cache
def snakemake_options() -> set[str]:
    text = subprocess.check_output([sys.executable, "-m", "snakemake", "--help"], text=True)
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))


def check_snakemake(words: list[str]) -> None:
    targets = {"all", *INPUTS}
    before = ""
    for word in words:
        if word.startswith("-"):
            assert word.partition("=")[0] in snakemake_options(), word
        elif before in ("--configfile", "--workflow-profile"):
            assert exists(word), word
        elif before not in ("--cores", "--config"):
            assert word in targets or word.startswith("runs/"), word
        if word.startswith("-") or before != "--configfile":
            before = word


def check_sbatch(words: list[str]) -> None:
    files = [word for word in words if not word.startswith("-") and not is_override(word)]
    script, *rest = files
    if script.endswith("/actors.sbatch"):
        assert rest == ["runs/NAME"], rest  # not a file of this folder, but of the reader's
        rest = []
    assert all(exists(file) for file in (script, *rest)), files


def check_python(words: list[str]) -> None:
    if words[0] == "-m":
        assert words[1] in ("venv", "pip", "pytest", "torch.distributed.run", "snakemake", "slurm.job", "workflow.cli")
        if words[1] == "pytest":
            assert all(exists(word.partition("::")[0]) for word in words[2:] if word.startswith("tests"))
    else:
        assert words[0] == "-c"
        compile(words[1], "documents", "exec")


CHECKS = {
    "make": check_make,
    "qianka": check_qianka,
    "snakemake": check_snakemake,
    "sbatch": check_sbatch,
    "python": check_python,
    "python3": check_python,
    "bash": lambda words: check_sbatch(words[:1]),
    "tensorboard": lambda words: None,
}


@pytest.mark.parametrize(("document", "command"), commands())
def test_a_command_of_the_documents_exists(document, command):
    words = shlex.split(command)
    while words and ASSIGNMENT.match(words[0]):
        words.pop(0)
    if not words:
        return
    name = words[0].removeprefix(".venv/bin/")
    assert name in CHECKS or name in SHELL, f"{document}: teach this test the command {name!r}"
    if name in CHECKS:
        CHECKS[name](words[1:])


@pytest.mark.parametrize("command", ["qianka plan", "qianka status", "qianka schema", "snakemake --cores 2 -n"])
def test_the_cheap_commands_run_in_an_empty_folder(command, tmp_path):
    name, *rest = command.split()
    module = {"qianka": "workflow.cli", "snakemake": "snakemake"}[name]
    shutil.copy(ROOT / "Snakefile", tmp_path)
    shutil.copytree(ROOT / "workflow" / "rules", tmp_path / "workflow" / "rules")
    done = subprocess.run([sys.executable, "-P", "-m", module, *rest], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


def test_a_run_is_opened_to_a_group_without_logs_tokens_and_locks(tmp_path):
    attempt = tmp_path / "runs/mine/sft/abc-1"
    names = ("log/7.pkl", "rendezvous/7.json", "roll/7/0.json", "endpoints/shard-0000.json", "weights/1", ".job.lock")
    secret = [attempt / name for name in (*names, "engine/mx0.json", "actors/7_0.0/relay-7_0.0.json")]
    shown = [attempt / "manifest.json", attempt / "checkpoints/step-1/state.json"]
    for path in [*secret, *shown]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for path in (tmp_path / "runs").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    (command,) = (line for document, line in commands() if line.startswith("find runs/mine"))
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    assert {path.stat().st_mode & 0o777 for path in shown} == {0o640}
    assert {path.parent.stat().st_mode & 0o777 for path in shown} == {0o750}
    closed = [attempt / name for name in ("log", "rendezvous", "roll", "endpoints", "weights", "engine")]
    assert {path.stat().st_mode & 0o070 for path in [*closed, *secret]} == {0}
