"""What a result depends on: the stage's config, its inputs, and the code that it can reach."""

import ast
import functools
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from checkpoints.manifest import digest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("workflow", "slurm", "stages", "data", "checkpoints")
BESIDE = (".yaml", ".yml", ".jinja", ".html", ".css", ".js", ".json")
"""What counts as code besides Python: algorithms and page templates."""
MODULE = re.compile(r"\w+(\.\w+)+")
LENGTH = 12
"""Characters of a fingerprint in the name of an attempt folder."""


def fingerprint(
    stage: str, config: Mapping[str, Any], inputs: Mapping[str, str], files: Mapping[str, str], code: str
) -> str:
    """Name of the result that a stage makes of these; equal names mean equal results."""
    parts = {"stage": stage, "config": digest(config), "inputs": dict(inputs), "files": dict(files), "code": code}
    return digest(parts)[:LENGTH]


def code_digest(stage: str) -> str:
    """Digest of the code that a stage can reach. Comments, docstrings and formatting do not count."""
    return digest(code_files(stage))


@functools.cache
def code_files(stage: str) -> dict[str, str]:
    """Digest of each file that a stage can reach by imports from its run.py, by path relative to the repository.

    Its actors and what it runs as processes count as well, and the algorithms and page templates beside all these.
    """
    folder, modules = ROOT / "stages" / stage, set[Path]()
    waiting = [folder / "run.py", folder / "config.py", folder / "actor" / "run.py", *folder.glob("*/__main__.py")]
    while waiting:
        path = waiting.pop()
        if path not in modules and path.exists():
            modules.add(path)
            waiting.extend(_imported(path))
    beside = {other for path in modules for other in path.parent.iterdir() if other.suffix in BESIDE}
    return {path.relative_to(ROOT).as_posix(): file_digest(path) for path in sorted(modules | beside)}


@functools.cache
def file_digest(path: Path) -> str:
    """Digest of what a file means: Python without comments and docstrings, YAML as its values, else the bytes."""
    if path.suffix == ".py":
        return digest(_meaning(path))
    if path.suffix in (".yaml", ".yml"):
        return digest(json.dumps(yaml.safe_load(path.read_text()), sort_keys=True))
    return digest(path.read_bytes().hex())


def _meaning(path: Path) -> str:
    tree = _tree(path)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(line: ast.AST) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), filename=str(path))


def _imported(path: Path) -> Iterator[Path]:
    """Files of this repository that a file imports, wherever in it, or names as a module in a string."""
    for node in ast.walk(_tree(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            names = [node.value]
        for name in names:
            if name.split(".")[0] in PACKAGES:
                base = ROOT.joinpath(*name.split("."))
                yield from (base.with_suffix(".py"), base / "__init__.py")


def code_version() -> str:
    """The git commit, with `+dirty` when the code differs from it; empty outside git."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return ""
    return f"{commit}+dirty" if _git("status", "--porcelain", "--", *PACKAGES) else commit


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
