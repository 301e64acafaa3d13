"""Answers of the vendors' tools, written in the formats of public captures, and tools that give them."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm.devices import metax, nvidia

FIXTURES = Path(__file__).parent / "fixtures"
METAX = {
    metax.TABLE: "table.txt",
    metax.LIST: "list_uuid.txt",
    metax.REASON: "unavailable.txt",
    metax.ECC: "ecc.txt",
    metax.TOPO: "topo_n.txt",
    metax.PROCESSES: "processes.txt",
}
NVIDIA = {
    nvidia.CARDS: "nvidia_cards.csv",
    nvidia.ECC: "nvidia_ecc.csv",
    nvidia.TABLE: "nvidia_table.txt",
    nvidia.TOPO: "nvidia_topo.txt",
    nvidia.PROCESSES: "nvidia_processes.csv",
}


@pytest.fixture(scope="session")
def answer() -> Callable[[str], str]:
    """The text of a fixture."""
    return lambda name: (FIXTURES / name).read_text()


@pytest.fixture(scope="session")
def metax_answers() -> dict[str, str]:
    """What mx-smi of a well node says, by its arguments."""
    return {arguments: (FIXTURES / name).read_text() for arguments, name in METAX.items()}


@pytest.fixture(scope="session")
def nvidia_answers() -> dict[str, str]:
    """What nvidia-smi of a well node says, by its arguments."""
    return {arguments: (FIXTURES / name).read_text() for arguments, name in NVIDIA.items()}


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a command on PATH that gives the answers, by its arguments, or runs a line of shell for all of them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, answers: dict[str, str] | None = None, shell: str = "exit 2") -> Path:
        cases = ""
        for number, (arguments, text) in enumerate((answers or {}).items()):
            path = tmp_path / f"{name}-{number}.txt"
            path.write_text(text)
            cases += f"{shlex.quote(arguments)}) exec cat {shlex.quote(str(path))};;\n"
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/{name}.log\ncase "$*" in\n{cases}*) {shell};;\nesac\n')
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root without cards and a PATH without tools."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    return tmp_path / "root"
